"""The command `tensorsmith`: demo, train, explain, doctor.

    tensorsmith demo                          train a classifier on the handwritten digits that come with the package
    tensorsmith train --data PATH             the same on MNIST-format files
    tensorsmith explain 'x * sigmoid(x)'      an expression from its derivative down to LLVM or CUDA text
    tensorsmith doctor                        what this machine offers, and whether a kernel computes what it should

Exit codes: 0 success, 1 a check failed, 2 a mistake in what was asked for (one line on stderr), 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from tensorsmith.cli.errors import UsageError

__all__ = ["UsageError", "main"]

INTERRUPTED = 130  # what shells report for a process that SIGINT ended
# Each module defines `add_arguments(parser)` and `run(options) -> int`; its imports wait until the command runs.
COMMANDS = {
    "demo": "train a classifier on the digits, show what the kernels did, save and reload it",
    "train": "train a classifier on the digits or on MNIST-format files",
    "explain": "show an expression or a function as derivative, graph, kernels, times, loops, LLVM and CUDA text",
    "doctor": "check this machine and this installation",
}


def make_parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    summary = "Deep learning that opens at every level: scalar function, kernel, tensor, gradient, module."
    parser = argparse.ArgumentParser(prog="tensorsmith", description=summary)
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="{" + ",".join(COMMANDS) + "}")
    for name, text in COMMANDS.items():
        module = import_module(f"tensorsmith.cli.{name}")
        command = commands.add_parser(
            name, help=text, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line (sys.argv by default); the exit code."""
    command = "tensorsmith"
    try:
        parser = make_parser()
        options = parser.parse_args(argv)
        if options.version:
            from importlib.metadata import version

            print(f"tensorsmith {version('tensorsmith')}")
            return 0
        if options.command is None:
            parser.print_help()
            return 2
        command += f" {options.command}"
        code = int(options.run(options))
        sys.stdout.flush()
        return code
    except SystemExit as leaving:  # argparse has printed the help, or the mistake
        return int(leaving.code or 0)
    except UsageError as mistake:
        print(f"{command}: {' '.join(str(mistake).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an impatient second Ctrl-C finds nothing left to stop
        print(f"{command}: interrupted; no file was left half written", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe went away (`| head`): nothing more can be said to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
