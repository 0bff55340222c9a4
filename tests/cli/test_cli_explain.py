"""`tensorsmith explain`: every level of scalar and tensor expressions."""

from __future__ import annotations

import pytest
from commands import run

from tensorsmith.cli import main
from tensorsmith.cli.errors import UsageError
from tensorsmith.cli.explain import explanation_text


def test_all_levels_of_a_scalar_expression(tmp_path):
    done = run(["explain", "x * sigmoid(x)", "--cuda"], tmp_path / "cache", tmp_path)
    assert done.returncode == 0, done.stderr
    for level in ("scalar", "graph", "kernel", "loops", "llvm", "cuda"):
        assert f"=== {level} " in done.stdout
    assert "df/dx = sigmoid(x) + sigmoid(x) * (1 - sigmoid(x)) * x" in done.stdout
    assert "define void @kernel_mul" in done.stdout  # LLVM
    assert 'extern "C" __global__ void' in done.stdout  # CUDA
    assert "lanes of the innermost axis" in done.stdout  # loops


def test_softmax_is_one_kernel_forward_and_one_backward():
    text = explanation_text("softmax(x, dim=-1)", ["x=64x100"], "float32", ("graph", "kernel"))
    assert "forward, step 1 of 1" in text and "gradient, step 1 of 1" in text
    assert "kernel div over 64 x 100*" in text
    assert "saved output 0" in text  # PyTorch's choice: the result is kept, not the input


def test_matrix_product_takes_bias_and_relu_along():
    text = explanation_text("relu(x @ w + b)", ["x=8x16", "w=16x32", "b=32"], "float32", ("kernel",))
    assert "forward, step 1 of 1: matmul_bias_relu" in text


def test_shapes_and_dtypes_are_taken_from_the_options():
    text = explanation_text("x * t", ["x=3x1:float64", "t=4:int32"], "float32", ("graph",))
    assert "x: float64[3, 1]" in text and "t: int32[4]" in text and "float64[3, 4]" in text


def test_a_bare_operator_is_called_with_defaults():
    text = explanation_text("layer_norm", ["x=10x20"], "float32", ("kernel",))
    assert "over 10 x 20*" in text


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        ("x * y", ["x=3", "y=4"], "do not broadcast"),
        ("x @ y", ["x=3x4", "y=5x6"], "cannot be multiplied"),
        ("x", ["z=3"], "variables of 'x' are x"),
        ("x * 2", ["x=3xq"], "expected a name and extents"),
        ("x * 2", ["x=3:float12"], "no dtype"),
        ("sum(x, dim=5)", [], "out of range"),
    ],
)
def test_mistakes_are_named(text, shapes, message):
    with pytest.raises(UsageError, match=message):
        explanation_text(text, shapes, "float32", ("graph", "kernel"))


def test_a_mistake_is_one_line_and_exit_code_2(capsys):
    assert main(["explain", "x +"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert captured.err.startswith("tensorsmith explain: cannot read")


MODEL = """
import tensorsmith as ts

weight = ts.ones(6, 3)
net = ts.nn.Linear(6, 2)

def forward(x, index, scale=2.0):
    return ((x @ weight) * scale)[index]

number = 3
"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def test_functions_of_files(model, tmp_path, capsys):
    shapes = ["--shape", "x=4x6", "--shape", "index=5:int64"]
    assert main(["explain", f"{model}:forward", *shapes, "--level", "fusion", "--time"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("forward   with   x: float32[4, 6], index: int64[5], weight: float32[6, 3]")
    assert "=== fusion " in text and "of roof" in text and "=== llvm " not in text
    assert main(["explain", f"{model}:net", "--shape", "input=4x6", "--format", "mlir"]) == 0
    assert capsys.readouterr().out.startswith('"builtin.module"() ({')
    assert main(["explain", f"{model}:forward", *shapes, "--level", "graph", "--html", str(tmp_path / "page.html")]) == 0
    assert "page.html: forward" in capsys.readouterr().out
    assert "((x @ weight) * scale)[index]" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    "name, message",
    [
        ("model.py:missing", "defines no function 'missing'"),
        ("model.py:number", "defines no function 'number'"),
        ("other.py:forward", "there is no such file"),
        ("broken.py:forward", "broken.py fails: ZeroDivisionError"),
    ],
)
def test_files_without_the_function(name, message, model, tmp_path, capsys):
    (tmp_path / "broken.py").write_text("1 / 0\n")
    assert main(["explain", str(tmp_path / name)]) == 2
    assert message in capsys.readouterr().err


def test_a_shape_for_a_parameter_that_there_is_not(model, capsys):
    assert main(["explain", f"{model}:forward", "--shape", "y=3"]) == 2
    assert "the variables of" in capsys.readouterr().err
