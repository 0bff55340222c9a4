"""Running the command line as a user does: another process, a kernel cache of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PASSED_ON = ("TENSORSMITH_ISA", "TENSORSMITH_LAUNCH", "TENSORSMITH_OPTIMISATION")


def environment(cache: Path) -> dict[str, str]:
    """The environment of a command: a private kernel cache, wide output without colours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENSORSMITH_")}
    kept |= {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return kept | {"TENSORSMITH_CACHE": str(cache), "COLUMNS": "160", "NO_COLOR": "1", "TERM": "dumb"}


def command(*arguments: str) -> list[str]:
    """The command line of `tensorsmith ...` with this interpreter."""
    return [sys.executable, "-m", "tensorsmith", *arguments]


def run(arguments: Sequence[str], cache: Path, folder: Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run `tensorsmith ARGUMENTS` in a folder."""
    return subprocess.run(
        command(*arguments), cwd=folder, env=environment(cache), text=True, capture_output=True, timeout=timeout
    )
