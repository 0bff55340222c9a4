"""The tree is the architecture: a room imports only from itself and from rooms above it in this list."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOMS = (
    "scalar", "core", "ir", "passes", "kernels", "targets", "runtime", "tensor", "autograd", "eager", "ops", "amp", "compile",
    "func", "nn", "optim", "data", "utils", "models", "onnx", "engine", "custom", "interop", "distributed", "serve", "app",
    "cli", "minitorch",
)  # fmt: skip

# Imports against the order that were argued for: {"room/module.py": {"tensorsmith.room", ...}}. Kept empty.
ALLOWED: dict[str, set[str]] = {}

# PyTorch's addresses, whose names are not ours.
ADDRESSES = {"optim/swa_utils.py"}

# Standard modules that some platform lacks: they may be imported inside a function, never when a module is imported.
PLATFORM_ONLY = {
    "crypt", "fcntl", "grp", "msvcrt", "nis", "ossaudiodev", "posix", "pty", "pwd", "resource", "spwd", "syslog",
    "termios", "tty", "winreg", "winsound",
}  # fmt: skip

SOURCE = Path(__file__).parent.parent / "src" / "tensorsmith"
MODULES = sorted(SOURCE.rglob("*.py"))


def room_of(path: Path) -> str | None:
    """The room that a file belongs to; None for the modules at the top (`__init__`, settings)."""
    inside = path.relative_to(SOURCE)
    return inside.parts[0] if len(inside.parts) > 1 else inside.stem if inside.stem in ROOMS else None


def dotted_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)


def imported_names(node: ast.AST, module: str) -> Iterator[str]:
    """Dotted names that an import statement may bind; relative ones made absolute."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            # `__init__` is still in the name, so that one level up is the package itself for it too.
            base = ".".join([*module.split(".")[: -node.level], *([base] if base else [])])
        yield from (f"{base}.{alias.name}" for alias in node.names)


def against_the_order(source: str, module: str, room: str | None) -> list[str]:
    """Imports of `module` (its text is `source`) that reach a later room, or a room through the package itself."""
    faults = []
    for node in ast.walk(ast.parse(source)):
        for name in imported_names(node, module):
            parts = name.split(".")
            if parts[0] != "tensorsmith" or room is None:
                continue
            # A bare `import tensorsmith` inside a room would reach every room through the package's namespace.
            target = parts[1] if len(parts) > 1 else ""
            if target in ROOMS:
                wrong = ROOMS.index(target) > ROOMS.index(room)
            else:
                wrong = not (SOURCE / f"{target}.py").exists() or target in ("", "__init__")
            if wrong:
                faults.append(f"line {getattr(node, 'lineno', 0)}: {name}")
    return faults


def at_import_time(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run when the module is imported: everything but the bodies of functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        yield node
        yield from at_import_time(node)


def platform_only(source: str, module: str) -> list[str]:
    """Platform-only modules that importing `module` would import."""
    names = [n for node in at_import_time(ast.parse(source)) for n in imported_names(node, module)]
    return [name for name in names if name.split(".")[0] in PLATFORM_ONLY]


def test_every_folder_is_a_room():
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    assert folders - set(ROOMS) == set()
    assert {"scalar", "core", "ir", "kernels", "targets"} <= folders


@pytest.mark.parametrize("path", MODULES, ids=dotted_name)
def test_module_keeps_to_the_rules(path: Path):
    source, module = path.read_text(encoding="utf-8"), dotted_name(path)
    inside = path.relative_to(SOURCE).as_posix()
    allowed = ALLOWED.get(inside, set())
    faults = against_the_order(source, module, room_of(path))
    assert [f for f in faults if f.split(": ")[1] not in allowed] == []
    assert platform_only(source, module) == []
    parts = path.relative_to(SOURCE).with_suffix("").parts
    words = {word for part in parts[parts[0] == "utils" :] for word in part.split("_")}  # that room is PyTorch's address
    assert inside in ADDRESSES or words.isdisjoint({"util", "utils"}), "a module is named after what it holds"


# ---------------------------------------------------------------------------------- the checks themselves can fail


@pytest.mark.parametrize(
    "source",
    [
        "from tensorsmith.ops import add",
        "from tensorsmith import ops",
        "import tensorsmith.ops.pointwise as p",
        "import tensorsmith",
        "from ..ops import add",
        "from .. import ops",
        "def f():\n    from tensorsmith.nn import Linear",
        "if True:\n    class A:\n        import tensorsmith.minitorch",
    ],
)
def test_an_import_of_a_later_room_is_found(source: str):
    assert len(against_the_order(source, "tensorsmith.kernels.spec", "kernels")) == 1


@pytest.mark.parametrize(
    "source",
    [
        "from tensorsmith.scalar.table import Fn",
        "from tensorsmith.core import dtypes",
        "import tensorsmith.kernels.canonical",
        "from . import canonical",
        "from ..core.dtypes import DType",
        "import numpy",
    ],
)
def test_an_import_of_an_earlier_room_is_not(source: str):
    assert against_the_order(source, "tensorsmith.kernels.spec", "kernels") == []


def test_platform_modules_are_found_at_import_time_only():
    assert platform_only("try:\n    import fcntl\nexcept ImportError:\n    fcntl = None", "tensorsmith.a") == ["fcntl"]
    assert platform_only("def lock():\n    import fcntl", "tensorsmith.a") == []
