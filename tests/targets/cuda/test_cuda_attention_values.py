"""What the kernels of attention compute, on the emulated device, against the formulas in float64."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from attention_values import HOPPER, agrees

from tensorsmith.core.dtypes import DType, bfloat16, bool_, float16, float32, float64


@pytest.fixture(autouse=True, scope="module")
def emulated():
    import emulator

    emulator.activate()


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [float32, float64, float16, bfloat16], ids=lambda dtype: dtype.name)
def test_every_dtype(dtype: DType, causal: bool, backward: bool) -> None:
    agrees(dtype, backward, causal, L=70)


@pytest.mark.parametrize("backward", [False, True])
def test_masks_and_dropout(backward: bool) -> None:
    agrees(float32, backward, mask=bool_, beside=True)
    agrees(float32, backward, mask=float32, dropout=0.3, S=130, causal=True)
    agrees(bfloat16, backward, mask=bool_, dropout=0.5, beside=True)
    agrees(float64, backward, mask=float64, dropout=0.1)


def test_a_row_that_sees_nothing_is_zero() -> None:
    agrees(float32, False, mask=bool_, hidden_row=True)
    agrees(float16, False, mask=bool_, hidden_row=True)


@pytest.mark.parametrize("backward", [False, True])
def test_sizes(backward: bool) -> None:
    agrees(float32, backward, L=1, S=1, E=1, F=1)
    agrees(float32, backward, L=3, S=150, E=70, F=9)
    agrees(float32, backward, L=65, S=2, E=9, F=200, lead=(2, 1))
    agrees(float64, backward, L=33, S=65, E=70, F=100, causal=True)


@pytest.mark.parametrize("backward", [False, True])
def test_columns_far_apart_and_negative_scales(backward: bool) -> None:
    agrees(float32, backward, turned=True, scale=-0.3)
    agrees(bfloat16, backward, turned=True, scale=0.0)


@pytest.mark.parametrize("backward", [False, True])
def test_sizes_of_halves(backward: bool) -> None:
    agrees(bfloat16, backward, causal=True, L=150, S=140, E=128, F=128, lead=(1, 1))
    agrees(float16, backward, L=1, S=3, E=1, F=1)
    agrees(bfloat16, backward, L=70, S=66, E=33, F=9, causal=True)  # rows that start anywhere
    agrees(float16, backward, L=70, S=66, E=256, F=160, lead=(1, 1))
    agrees(bfloat16, backward, L=40, S=200, E=128, F=128, dropout=0.5, mask=float32, lead=(1, 1))
    agrees(bfloat16, backward, L=20, S=30, E=300, F=20)  # more columns than registers


@pytest.mark.parametrize("name", HOPPER)
def test_hopper(name: str) -> None:
    program = Path(__file__).with_name("attention_values.py")
    environment = {**os.environ, "EMULATED_ARCHITECTURE": "sm_90a"}
    done = subprocess.run([sys.executable, program, name], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
