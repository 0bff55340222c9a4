"""The generated pages and stub files, all from the tables: `python docs/generate` rewrites them.

    docs/operators.md            every public operator: how it is computed, gradient, forms, targets, accuracy
    docs/scalars.md              every scalar function: typing, accuracy, source, derivative
    tensor/tensor.pyi            Tensor with every bound method, for type checkers and editors
    __init__.pyi                 the functions of `ts`
    linalg.pyi, special.pyi, nn/functional.pyi    the functions of these namespaces

`--check` writes nothing and exits 1 where a file is not current.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
sys.path.insert(0, str(SOURCE))  # what is described is this tree, whatever is installed

from pages import operators_page, scalar_page  # noqa: E402
from stubs import PACKAGE, namespace_stub, tensor_stub  # noqa: E402


def generated() -> dict[Path, str]:
    """Every generated file and what it should hold."""
    package = SOURCE / PACKAGE.name
    return {
        ROOT / "docs" / "operators.md": operators_page(),
        ROOT / "docs" / "scalars.md": scalar_page(),
        package / "tensor" / "tensor.pyi": tensor_stub(),
        package / "__init__.pyi": namespace_stub("tensorsmith", ""),
        **{package / f"{n}.pyi": namespace_stub(f"tensorsmith.{n}", n) for n in ("linalg", "special")},
        package / "nn" / "functional.pyi": namespace_stub("tensorsmith.nn.functional", "nn.functional"),
    }


def main(arguments: Sequence[str]) -> int:
    """Rewrite the files, or with --check say which are not current."""
    if list(arguments) not in ([], ["--check"]):
        print("usage: python docs/generate [--check]", file=sys.stderr)
        return 2
    stale = {
        path: text for path, text in generated().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    }  # fmt: skip
    for path, text in stale.items():
        name = path.relative_to(ROOT)
        if arguments:
            print(f"{name} is not current; run: python docs/generate")
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    return 1 if arguments and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
