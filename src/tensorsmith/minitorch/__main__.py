"""python -m tensorsmith.minitorch FILE ... | pytest ... | parallel_check"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

USAGE = """usage: python -m tensorsmith.minitorch FILE [ARGUMENT ...]
       python -m tensorsmith.minitorch pytest [ARGUMENT ...]
       python -m tensorsmith.minitorch parallel_check

Runs a MiniTorch program, or its tests, with `import minitorch` meaning this package; parallel_check says what the
compiler made of a map, a zip, a reduce and a matrix product."""


def main(arguments: list[str]) -> int:
    """Run a program or tests; the exit status."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    command, rest = arguments[0], arguments[1:]
    if command == "parallel_check":
        from tensorsmith.minitorch.parallel_check import report

        print(report())
        return 0
    from tensorsmith.minitorch import alias

    alias.install()
    if command == "pytest":
        try:
            import pytest
        except ImportError:
            print("tensorsmith.minitorch pytest: pytest is not installed; pip install pytest hypothesis", file=sys.stderr)
            return 2
        sys.path.insert(0, "")
        return int(pytest.main(["-p", "tensorsmith.minitorch.alias", *rest]))
    if not Path(command).is_file():
        print(f"tensorsmith.minitorch: there is no file {command}\n\n{USAGE}", file=sys.stderr)
        return 2
    sys.argv = arguments
    sys.path[0] = str(Path(command).resolve().parent)
    runpy.run_path(command, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
