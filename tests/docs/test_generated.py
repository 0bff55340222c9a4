"""The generated pages and stubs are current, and say what the tables say."""

from __future__ import annotations

import ast
import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import pytest

import tensorsmith as ts
from tensorsmith.ir.batching import RULES as BATCHES
from tensorsmith.ops.registry import TABLE, Public
from tensorsmith.scalar.table import TABLE as SCALARS, Fn

GENERATOR = Path(__file__).parents[2] / "docs" / "generate"
sys.path.append(str(GENERATOR))
import agreement  # noqa: E402
from anatomy import anatomy  # noqa: E402
from pages import cuda_rendering, gradient_rule, how_computed, operators_page, scalar_page, tangent_rule, transform_rule  # noqa: E402
from stubs import Stub, namespace_stub, tensor_stub  # noqa: E402


def test_generated_files_are_current():
    # In a process of its own: tests of custom operators add rows to the table.
    check = [sys.executable, str(GENERATOR), "--check"]
    finished = subprocess.run(check, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_every_public_operator_has_a_row():
    page = operators_page()
    for entry in TABLE.values():
        prefix = f"{entry.namespace}." if entry.namespace else ""
        assert f"`ts.{prefix}{entry.name}`" in page


def test_every_operator_is_found_under_the_name_of_its_row():
    for entry in TABLE.values():
        if entry.family == "custom":  # made by other tests
            continue
        module = attrgetter(entry.namespace)(ts) if entry.namespace else ts
        for name in (entry.name, *entry.aliases):
            assert getattr(module, name) is entry.function, f"ts.{entry.namespace}.{name}"


def test_every_scalar_function_has_a_row_with_its_derivative():
    rows = {line.split("(")[0].strip("| `"): line for line in scalar_page().splitlines() if line.startswith("| `")}
    assert set(rows) == {fn.value for fn in Fn}
    assert rows["tanh"].endswith("| `1 - tanh(x) * tanh(x)` |")
    assert all(rows[row.name].endswith("| — |") for row in SCALARS.values() if not row.differentiable)


@pytest.mark.parametrize(
    ("name", "functions"),
    [
        ("exp", {"exp"}),
        ("softmax", {"exp"}),
        ("logsumexp", {"abs", "eq", "exp", "log", "where"}),
        ("nn.functional.gelu", {"erf", "sqrt", "tanh"}),
    ],
)
def test_anatomy_finds_the_scalar_functions(name: str, functions: set[str]):
    assert {fn.value for fn in anatomy(TABLE[name]).functions} == functions


@pytest.mark.parametrize(
    ("name", "computed", "gradient", "cuda"),
    [
        ("exp", "own kernel", "derived", "yes"),
        ("softmax", "own kernel", "own rule", "yes"),
        ("matmul", "own kernel (matrix product)", "derived", "no matmul"),
        ("transpose", "view", "derived", "view"),
        ("eq", "own kernel", "none", "yes"),
        ("searchsorted", "own kernel (order)", "none", "no library"),
        ("isin", "library call (NumPy)", "none", "library"),
    ],
)
def test_slots_of_known_operators(name: str, computed: str, gradient: str, cuda: str):
    entry, found = TABLE[name], anatomy(TABLE[name])
    assert (how_computed(entry, found), gradient_rule(entry, found), cuda_rendering(entry, found)) == (
        computed, gradient, cuda,
    )  # fmt: skip


def test_every_operator_has_rules_of_forward_mode_and_batching():
    assert "map" in transform_rule(TABLE["exp"], anatomy(TABLE["exp"]), ())
    for entry in TABLE.values():
        found = anatomy(entry)
        assert tangent_rule(entry, found) in ("yes", "none", "of its parts"), entry.name
        assert transform_rule(entry, found, BATCHES) in ("yes", "of its parts"), entry.name


def test_a_custom_operator_is_a_row():
    def cube(x):
        """The cube."""
        return x * x * x

    operator = ts.elementwise(name="cube_for_the_page")(cube)
    entry = Public("cube_for_the_page", operator, "custom", method=False)
    row = next(line for line in operators_page([entry]).splitlines() if "`ts.cube_for_the_page`" in line)
    assert row.split(" | ")[1:7] == ["—", "—", "—", "own kernel", "own rule", "yes"]


def test_the_stub_has_every_member_of_tensor():
    tree = ast.parse(tensor_stub())
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Tensor").body
    written = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    written |= {ast.unparse(node.target) for node in body if isinstance(node, ast.AnnAssign)}
    assert {name for name in vars(ts.Tensor) if not name.startswith("_")} <= written
    assert {"__add__", "__radd__", "__iadd__", "__matmul__", "__len__", "__eq__"} <= written


def test_the_stub_of_a_namespace_has_every_function():
    tree = ast.parse(namespace_stub("tensorsmith", ""))
    written = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert {"exp", "softmax", "zeros", "matmul", "absolute"} <= written
    assert "from_numpy" not in written, "what the source imports is not written twice"


def test_annotations_that_cannot_be_imported_become_any():
    class Local:
        pass

    def function(self, a: Local, b: int = 3, *rest: str, c: float = float("inf")) -> Missing:  # noqa: F821
        """One.

        Two.
        """

    stub = Stub("anywhere", shadowing=["int"])
    stub.function("f", function, "    ")
    assert stub.lines == [
        "    def f(self, a: Any, b: builtins.int = 3, *rest: str, c: float = ...) -> Any:",
        '        """One."""',
    ]


def test_type_checkers_read_the_stub(tmp_path):
    mypy = pytest.importorskip("mypy.api", reason="mypy is of the lint extra")
    program = tmp_path / "program.py"
    program.write_text(
        "import tensorsmith as ts\n"
        "x = ts.zeros(2, 3)\n"
        "reveal_type(x.exp() + 1)\n"
        "reveal_type(x.T)\n"
        "reveal_type(len(x))\n"
        "reveal_type(ts.softmax(x, 1))\n"
        "x.expp()\n"
    )
    output, _, _ = mypy.run([str(program), "--cache-dir", str(tmp_path / "cache"), "--follow-imports", "silent"])
    found = [line.partition(": ")[2] for line in output.splitlines()]
    tensor = 'note: Revealed type is "tensorsmith.tensor.tensor.Tensor"'
    assert found[:2] == [tensor, tensor]
    assert found[2] == 'note: Revealed type is "int"' or found[2] == 'note: Revealed type is "builtins.int"'
    assert found[3] == tensor
    assert found[4].startswith('error: "Tensor" has no attribute "expp"')


def test_every_entry_that_does_not_pass_has_a_reason():
    figures = agreement.kept()
    assert "float32" in figures
    for dtype, found in figures.items():
        for kind in ("forward", "gradient"):
            passed, total = found[kind]
            failing = sum(each[kind][0] < each[kind][1] for each in found["failing"].values())
            assert passed + failing == total, f"{dtype}: {kind}"
        unexplained = [entry for entry in found["failing"] if not agreement.reason(dtype, entry)]
        assert not unexplained, f"{dtype}: say why in docs/generate/agreement.py: {unexplained}"
    assert agreement.reason("float32", "exp") == "", "a reason for everything would say nothing"


def test_the_figures_of_float32_are_those_of_the_numerics_page():
    found = agreement.kept()["float32"]
    row = "| float32 | {} of {} | {} of {} |".format(*found["forward"], *found["gradient"])
    assert row in (GENERATOR.parent / "numerics.md").read_text(encoding="utf-8")


def test_an_entry_that_does_not_pass_is_on_the_page():
    figures = {"float32": {"failing": {"chalf": {"forward": [0, 5], "gradient": [5, 5], "fault": "no"}}}}
    assert "| float32 | `chalf` | forward 0 of 5 | There is no complex32" in "\n".join(agreement.section(figures))
