"""Products in plans on the emulated device: views are read where they lie, what follows is computed along."""

from collections.abc import Callable

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.targets.cuda import launcher

rng = np.random.default_rng(0)

CASES: dict[str, tuple[Callable, tuple[tuple[int, ...], ...]]] = {
    "heads": (lambda q, k: q.permute(0, 2, 1, 3) @ k.permute(0, 2, 3, 1), ((2, 7, 3, 16), (2, 9, 3, 16))),
    "parts of rows": (lambda a, b: a[:, 1:9] @ b[1:9], ((5, 12), (12, 6))),
    "steps": (lambda a, b: a[:, ::2] @ b[::2], ((5, 16), (16, 6))),
    "one matrix for all": (lambda a, b: a @ b, ((4, 3, 5, 8), (8, 6))),
    "broadcast batches": (lambda a, b: a @ b, ((3, 5, 8), (4, 1, 8, 6))),
    "a vector on the right": (lambda a, b: a @ b, ((33, 40), (40,))),
    "a vector on the left": (lambda a, b: b @ a, ((40, 33), (40,))),
}
COMPILED = {
    "gelu and residual": (
        lambda x, w, b, r: ts.nn.functional.gelu(x @ w.T + b) + r, ((6, 24), (16, 24), (16,), (6, 16)),
    ),
    "linear of three axes": (lambda x, w, b: ts.tanh(ts.nn.functional.linear(x, w, b)), ((2, 6, 24), (16, 24), (16,))),
    "scaled and clamped": (lambda x, w: ((x @ w) * 0.5 + 1).clamp(min=0), ((2, 5, 24), (2, 24, 8))),
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def emulated():
    import emulator

    emulator.activate()


def compare(
    function: Callable, shapes: tuple[tuple[int, ...], ...], dtype: ts.dtype, reference: Callable | None = None
) -> list[str]:
    """Check against the CPU in float32; the names of the kernels that were laid out for launching."""
    operands = [ts.tensor(rng.standard_normal(shape).astype(np.float32)).to(dtype) for shape in shapes]
    on_device = [each.to("cuda") for each in operands]
    names: list[str] = []
    laid_out = launcher.LaunchTable.__init__

    def spy(self, lowered, *rest):
        names.extend(launch.name for launch in lowered.launches)
        laid_out(self, lowered, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launcher.LaunchTable, "__init__", spy)
        result = function(*on_device)
    expected = (reference or function)(*[each.float() for each in operands]).numpy()
    tolerance = 1e-5 if dtype is ts.float32 else 1e-2
    np.testing.assert_allclose(result.float().cpu().numpy(), expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())
    return names


@pytest.mark.parametrize("dtype", [ts.float32, ts.bfloat16], ids=str)
@pytest.mark.parametrize(("function", "shapes"), CASES.values(), ids=CASES.keys())
def test_views_are_read_where_they_lie(function: Callable, shapes: tuple, dtype: ts.dtype):
    names = compare(function, shapes, dtype)
    assert all(name.startswith("gemm_") for name in names), names  # empty where an equal one was laid out before


@pytest.mark.parametrize("dtype", [ts.float32, ts.bfloat16], ids=str)
@pytest.mark.parametrize(("function", "shapes"), COMPILED.values(), ids=COMPILED.keys())
def test_what_follows_is_computed_along(function: Callable, shapes: tuple, dtype: ts.dtype):
    names = compare(ts.compile(function), shapes, dtype, function)
    assert len(names) == 1 and names[0].startswith("gemm_"), names
