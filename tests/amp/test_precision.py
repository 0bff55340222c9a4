"""The switches of TF32, under PyTorch's names: one setting behind them, and kept plans are forgotten."""

from __future__ import annotations

import pytest

import tensorsmith as ts
from tensorsmith.eager.fast import FAST


@pytest.fixture(autouse=True)
def as_before():
    yield
    ts.set_float32_matmul_precision("highest")
    ts.backends.cudnn.allow_tf32 = True


def test_one_setting_has_two_names():
    assert ts.get_float32_matmul_precision() == "highest" and ts.backends.cuda.matmul.allow_tf32 is False
    ts.set_float32_matmul_precision("medium")
    assert ts.backends.cuda.matmul.allow_tf32 is True
    ts.backends.cuda.matmul.allow_tf32 = False
    assert ts.get_float32_matmul_precision() == "highest"
    assert ts.backends.cudnn.allow_tf32 is True
    ts.backends.cudnn.allow_tf32 = False
    assert ts.backends.cudnn.allow_tf32 is False and ts.backends.cuda.matmul.allow_tf32 is False


def test_unknown_settings_are_refused():
    with pytest.raises(ValueError, match="highest, high, medium"):
        ts.set_float32_matmul_precision("low")
    with pytest.raises(AttributeError, match="has no setting"):
        ts.backends.cuda.matmul.allow_tf23 = True
    with pytest.raises(AttributeError, match="has no setting"):
        ts.backends.cudnn.benchmark = True


def test_plans_are_made_anew():
    x = ts.ones(3, 3)
    compiled = ts.compile(lambda x: x @ x)
    compiled(x)
    compiled(x)
    x @ x  # noqa: B018
    assert any(key[1] is x.layout for key in FAST if len(key) > 1)
    ts.backends.cuda.matmul.allow_tf32 = True
    assert not any(key[1] is x.layout for key in FAST if len(key) > 1)
    compiled(x)
    assert len(compiled.plans) == 2
    ts.backends.cuda.matmul.allow_tf32 = False
    compiled(x)
    assert len(compiled.plans) == 2
