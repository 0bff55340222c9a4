"""PyTorch's operator database without its walk through the stack.

For every entry whose samples are asked for, PyTorch looks twice through all frames of the stack, and their source files, for a
unittest that could be running. There is none here, and the walk takes ten times as long as the samples do. To import this
module is to have it answer at once. As a program it runs another one so:

    python tests/torch_samples.py PROGRAM ARGUMENTS...
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from torch.testing._internal import common_utils
from torch.testing._internal.opinfo import core


def no_unittest() -> None:
    """What the walk finds."""


for module in (common_utils, core):
    assert callable(module.extract_test_fn)  # AttributeError: PyTorch has changed, this module has nothing to do
    module.extract_test_fn = no_unittest

if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
