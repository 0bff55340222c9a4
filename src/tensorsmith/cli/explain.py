"""Show an expression at every level, from its derivative down to LLVM or CUDA text.

  tensorsmith explain 'x * sigmoid(x)'
  tensorsmith explain 'a if x > 0 else a * (exp(x) - 1)' --level scalar
  tensorsmith explain 'softmax(x, dim=-1)' --shape x=4096x1000 --level loops
  tensorsmith explain 'relu(x @ w + b)' --shape x=64x784 --shape w=784x256 --shape b=256
  tensorsmith explain 'cross_entropy(x, t)' --shape t=1024:int64 --level kernel
  tensorsmith explain layer_norm --level cuda
"""

from __future__ import annotations

import argparse
import math
from typing import Any

from tensorsmith.cli.errors import UsageError

LEVELS = ("scalar", "graph", "kernel", "loops", "llvm", "cuda", "all")
DEFAULT_SHAPES = {"scalar": (1 << 20,), "tensor": (1024, 1024)}
MOST_ELEMENTS = 1 << 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `tensorsmith explain`."""
    parser.add_argument("expression", help="in named variables, over functions, operators and Python arithmetic")
    parser.add_argument(
        "--shape", action="append", default=[], metavar="NAME=4096x1000[:DTYPE]",
        help="extents (and dtype) of a variable; default 1048576 for scalar expressions, else 1024x1024",
    )  # fmt: skip
    parser.add_argument("--dtype", default="float32", help="dtype of the other variables (default float32)")
    parser.add_argument(
        "--level", choices=LEVELS, default=None, help="one level only (all: every one of them, CUDA included)"
    )
    parser.add_argument("--cuda", action="store_true", help="CUDA C++ text too")


def run(options: argparse.Namespace) -> int:
    """Print the levels asked for."""
    from tensorsmith.compile.explain import DEFAULT_LEVELS, LEVELS as EVERY_LEVEL

    levels: tuple[str, ...] = DEFAULT_LEVELS
    if options.level == "all":
        levels = EVERY_LEVEL
    elif options.level is not None:
        levels = (options.level,)
    if options.cuda and "cuda" not in levels:
        levels = (*levels, "cuda")
    print(explanation_text(options.expression, options.shape, options.dtype, levels))
    return 0


def explanation_text(text: str, shapes: list[str], dtype: str, levels: tuple[str, ...]) -> str:
    """The levels of an expression as text. Raises UsageError for what cannot be understood or traced."""
    from tensorsmith.cli.expression import parse
    from tensorsmith.compile.explain import explain, explain_expression
    from tensorsmith.compile.tracer import TraceError
    from tensorsmith.tensor.tensor import empty_tensor

    parsed = parse(text)
    kind = "tensor" if parsed.expression is None else "scalar"
    given = dict(_shape(part) for part in shapes)
    unknown = sorted(set(given) - set(parsed.names))
    if unknown:
        raise UsageError(f"--shape {unknown[0]}=...: the variables of {text!r} are {', '.join(parsed.names)}")
    default = _dtype(dtype)
    extents = [given.get(name, (DEFAULT_SHAPES[kind], None))[0] for name in parsed.names]
    dtypes = [given.get(name, ((), None))[1] or default for name in parsed.names]
    try:
        if parsed.expression is not None:
            found = explain_expression(parsed.expression, parsed.names, extents, dtypes, title=text)
        else:
            assert parsed.function is not None
            found = explain(parsed.function, *(empty_tensor(d, shape) for d, shape in zip(dtypes, extents)))
            found.title = text + found.title.removeprefix("expression")
        return found.text(levels)
    except TraceError as error:
        raise UsageError(f"{text!r} cannot be shown: {error}") from error
    except NotImplementedError as error:
        raise UsageError(f"{text!r}: not implemented: {error}") from error
    except (TypeError, ValueError, RuntimeError, IndexError, MemoryError, ArithmeticError) as error:
        raise UsageError(f"{text!r}: {error}") from error


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
