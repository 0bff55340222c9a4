"""Every program in `examples/` runs and prints what it promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from commands import environment

EXAMPLES = Path(__file__).parents[2] / "examples"
EXPECTED = {
    "scalar_autodiff.py": ["df/dx = where(x > 0, sigmoid(y), exp(x))", "on a tensor: df/dx = tensor([0.2689, 0.6065"],
    "custom_function.py": ["gradcheck   True True", "=== kernel ==="],
    "train_mlp.py": ["epoch 12", "reloaded from "],
}


def test_no_example_is_left_out():
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_example(name, tmp_path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=tmp_path, env=environment(tmp_path / "cache"), text=True, capture_output=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for part in EXPECTED[name]:
        assert part in done.stdout
