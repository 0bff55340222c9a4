"""The package is not PyTorch: it imports no torch; operators, gradients and compiled programs run where there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BLOCKED = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "functorch"):
            raise ImportError(f"{name} is not there")
        return None

sys.meta_path.insert(0, NoTorch())
sys.path[:0] = %(path)r
import tensorsmith as ts

assert not [name for name in sys.modules if name.split(".")[0] == "torch"]
try:
    import torch
except ImportError:
    pass
else:
    raise AssertionError("torch is not blocked")
"""

OPERATORS = """
import numpy as np
import harness
from tensorsmith.eager.operator import operators

ran = differentiated = 0
for name, operator in sorted(operators().items()):
    try:
        sample = next(iter(harness.samples(operator)))
    except LookupError:
        continue  # test_operators.py names an operator without a sample
    given = harness.arrays(sample, ts.float32, harness.BASIC, np.random.default_rng(0))
    operands = [ts.tensor(x) if isinstance(x, np.ndarray) else x for x in given]
    for x in operands:
        if isinstance(x, ts.Tensor) and x.dtype is ts.float32:
            x.requires_grad_()
    results = operator(*operands, **sample.attrs)
    ran += 1
    tracked = [r for r in (results if isinstance(results, tuple | list) else [results]) if r.requires_grad]
    if tracked:
        leaves = [x for x in operands if isinstance(x, ts.Tensor) and x.requires_grad]
        try:
            ts.autograd.grad(tracked, leaves, [ts.ones_like(r) for r in tracked], allow_unused=True)
        except NotImplementedError as error:
            assert "derivative" in str(error), error  # of an operand that PyTorch has no derivative for either
        else:
            differentiated += 1
print(ran, differentiated)
"""

PROGRAMS = """
@ts.compile
def step(x, w):
    return ts.nn.functional.softmax(ts.relu(x @ w), 1).sum()

x, w = ts.randn(4, 5), ts.randn(5, 3)
assert abs(step(x, w).item() - 4) < 1e-4

model = ts.nn.Sequential(ts.nn.Linear(5, 8), ts.nn.Tanh(), ts.nn.Linear(8, 1))
optimizer = ts.optim.Adam(model.parameters(), lr=0.05)
losses = []
for _ in range(30):
    loss = ts.nn.functional.mse_loss(model(x), x[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < losses[0] / 2, losses
assert not [name for name in sys.modules if name.split(".")[0] == "torch"]
"""


def run(program: str) -> str:
    """What a program prints in a process of its own where torch cannot be imported."""
    path = [str(Path(__file__).parents[1] / "src"), str(Path(__file__).parent / "ops")]
    command = [sys.executable, "-c", BLOCKED % {"path": path} + program]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def test_every_operator_and_its_gradient_run_without_torch():
    ran, differentiated = map(int, run(OPERATORS).split())
    assert ran > 180 and differentiated > 130, (ran, differentiated)


def test_compiled_functions_and_training_run_without_torch():
    run(PROGRAMS)
