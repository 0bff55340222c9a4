"""Show an expression at every level, from its derivative down to LLVM or CUDA text.

  tensorsmith explain 'x * sigmoid(x)'
  tensorsmith explain 'a if x > 0 else a * (exp(x) - 1)' --level scalar
  tensorsmith explain 'softmax(x, dim=-1)' --shape x=4096x1000 --level loops
  tensorsmith explain 'relu(x @ w + b)' --shape x=64x784 --shape w=784x256 --shape b=256
  tensorsmith explain 'cross_entropy(x, t)' --shape t=1024:int64 --level kernel
  tensorsmith explain layer_norm --level cuda
  tensorsmith explain model.py:forward --shape x=32x784 --time --html forward.html
  tensorsmith explain model.py:forward --shape x=32x784 --format mlir

FILE:FUNCTION runs the file, and takes the function, or the module, that it defines under this name.
"""

from __future__ import annotations

import argparse
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorsmith.cli.errors import UsageError

if TYPE_CHECKING:
    from tensorsmith.compile.explain import Explanation

LEVELS = ("scalar", "graph", "passes", "fusion", "kernel", "loops", "llvm", "cuda", "time", "all")
DEFAULT_SHAPES = {"scalar": (1 << 20,), "tensor": (1024, 1024)}
MOST_ELEMENTS = 1 << 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `tensorsmith explain`."""
    parser.add_argument(
        "expression", help="in named variables, over functions, operators and Python arithmetic; or FILE.py:FUNCTION"
    )
    parser.add_argument(
        "--shape", action="append", default=[], metavar="NAME=4096x1000[:DTYPE]",
        help="extents (and dtype) of a variable; default 1048576 for scalar expressions, else 1024x1024",
    )  # fmt: skip
    parser.add_argument("--dtype", default="float32", help="dtype of the other variables (default float32)")
    parser.add_argument(
        "--level", choices=LEVELS, default=None, help="one level only (all: every one of them, CUDA included)"
    )
    parser.add_argument("--cuda", action="store_true", help="CUDA C++ text too")
    parser.add_argument("--time", action="store_true", help="run and time every step, beside this machine's roof")
    parser.add_argument("--html", metavar="FILE", help="write the levels, and the graph drawn, as one page")
    parser.add_argument("--format", choices=("text", "mlir"), default="text", help="mlir: the graph in MLIR's textual form")


def run(options: argparse.Namespace) -> int:
    """Print the levels asked for."""
    from tensorsmith.compile.explain import DEFAULT_LEVELS, LEVELS as EVERY_LEVEL

    levels: tuple[str, ...] = DEFAULT_LEVELS
    if options.level == "all":
        levels = EVERY_LEVEL
    elif options.level is not None:
        levels = (options.level,)
    for asked, level in ((options.cuda, "cuda"), (options.time, "time")):
        if asked and level not in levels:
            levels = (*levels, level)
    with _said_plainly(options.expression):
        found = explained(options.expression, options.shape, options.dtype)
        if options.html:
            found.html(options.html, levels)
            print(f"{options.html}: {found.title}")
        elif options.format == "mlir":
            print(found.mlir(), end="")
        else:
            print(found.text(levels))
    return 0


@contextmanager
def _said_plainly(text: str) -> Iterator[None]:
    """UsageError for what cannot be understood, traced or written."""
    from tensorsmith.compile.tracer import TraceError

    try:
        yield
    except UsageError:
        raise
    except TraceError as error:
        raise UsageError(f"{text!r} cannot be shown: {error}") from error
    except NotImplementedError as error:
        raise UsageError(f"{text!r}: not implemented: {error}") from error
    except (TypeError, ValueError, RuntimeError, IndexError, MemoryError, ArithmeticError, OSError) as error:
        raise UsageError(f"{text!r}: {error}") from error


def explanation_text(text: str, shapes: list[str], dtype: str, levels: tuple[str, ...]) -> str:
    """The levels of an expression as text. Raises UsageError for what cannot be understood or traced."""
    with _said_plainly(text):
        return explained(text, shapes, dtype).text(levels)


def explained(text: str, shapes: list[str], dtype: str) -> Explanation:
    """The explanation of an expression, or of the function that FILE.py:FUNCTION names."""
    from tensorsmith.cli.expression import parse
    from tensorsmith.compile.explain import explain, explain_expression
    from tensorsmith.tensor.tensor import empty_tensor

    given = dict(_shape(part) for part in shapes)
    default = _dtype(dtype)

    def extents_and_dtypes(names: Sequence[str], kind: str) -> tuple[list[tuple[int, ...]], list[Any]]:
        unknown = sorted(set(given) - set(names))
        if unknown:
            raise UsageError(f"--shape {unknown[0]}=...: the variables of {text!r} are {', '.join(names)}")
        extents = [given.get(name, (DEFAULT_SHAPES[kind], None))[0] for name in names]
        return extents, [given.get(name, ((), None))[1] or default for name in names]

    path, _, name = text.rpartition(":")
    if path.endswith(".py") and name.isidentifier():
        function = function_of(path, name)
        names = _parameters(function, given)
        extents, dtypes = extents_and_dtypes(names, "tensor")
        found = explain(function, *(empty_tensor(d, shape) for d, shape in zip(dtypes, extents)))
    else:
        parsed = parse(text)
        extents, dtypes = extents_and_dtypes(parsed.names, "tensor" if parsed.expression is None else "scalar")
        if parsed.expression is not None:
            return explain_expression(parsed.expression, parsed.names, extents, dtypes, title=text)
        assert parsed.function is not None
        found = explain(parsed.function, *(empty_tensor(d, shape) for d, shape in zip(dtypes, extents)))
        found.title = text + found.title.removeprefix("expression")
    if found.operands is not None:  # the tensors made here have no values: times are taken on others
        found.operands = [None] * len(extents) + found.operands[len(extents) :]
    return found


def function_of(path: str, name: str) -> Callable[..., Any]:
    """What a file defines under a name. Raises UsageError where there is no such file or name, or the file fails."""
    from importlib.util import module_from_spec, spec_from_file_location

    if not Path(path).is_file():
        raise UsageError(f"{path}: there is no such file")
    spec = spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.path.insert(0, str(Path(path).resolve().parent))  # as `python FILE` has it
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"{path} fails: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    found = getattr(module, name, None)
    if not callable(found):
        raise UsageError(f"{path} defines no function {name!r}")
    return found  # type: ignore[no-any-return]


def _parameters(function: Callable[..., Any], given: dict[str, Any]) -> list[str]:
    """The parameters that get tensors: those without a default, and those with a shape."""
    forward = getattr(function, "forward", function)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [p for p in inspect.signature(forward).parameters.values() if p.kind in kinds]
    wanted = [i for i, p in enumerate(parameters) if p.default is p.empty or p.name in given]
    return [p.name for p in parameters[: max(wanted, default=-1) + 1]]


def _shape(part: str) -> tuple[str, tuple[tuple[int, ...], Any]]:
    """NAME=4096x1000:int64 -> (name, (extents, dtype or None)); NAME= alone is a zero-dim tensor."""
    name, equals, rest = part.partition("=")
    extents, _, dtype = rest.partition(":")
    parts = extents.replace("×", "x").split("x") if extents else []
    if not equals or not name.isidentifier() or not all(p.isdecimal() for p in parts):
        raise UsageError(f"--shape {part}: expected a name and extents, such as x=4096x1000 or t=4096:int64")
    shape = tuple(int(p) for p in parts)
    if math.prod(shape) > MOST_ELEMENTS:
        raise UsageError(f"--shape {part}: more than {MOST_ELEMENTS} elements")
    return name, (shape, _dtype(dtype) if dtype else None)


def _dtype(name: str) -> Any:
    from tensorsmith.core.dtypes import ALL

    known = {d.name: d for d in ALL}
    if name not in known:
        raise UsageError(f"there is no dtype {name!r}; there are {', '.join(known)}")
    return known[name]
