"""All operators of the package: eager execution against the reference, and gradients against differences."""

import os
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

import tensorsmith as ts
from tensorsmith.autograd import gradcheck, gradgradcheck
from tensorsmith.eager.operator import operators
from tensorsmith.scalar.table import TABLE

sys.path.append(str(Path(__file__).parent))
import harness  # noqa: E402

FLOATS = (ts.float32, ts.float64, ts.float16, ts.bfloat16)
REFUSALS = (RuntimeError, TypeError, NotImplementedError, ValueError)
ELEMENTARY = {row.name for row in TABLE.values()}
NAMES = [name for name in harness.names() if not name.endswith("_for_tests")]


def runs(name, number):
    """The placements in float32 and the other dtypes that sample `number` of an operator is run in.

    All of them for the first sample of every third operator, but for two integers; one of a kind else, and where another
    instruction set than the machine's own is asked for. Which one turns with the operator, so that all operators together
    cover every pair. So it is for the placements of scalar functions too, which few kernels read and write.
    """
    spin = zlib.crc32(name.encode()) + number
    pick = lambda kinds, count=1: tuple([kinds[(spin + i) % len(kinds)] for i in range(count)])
    few = number > 0 or spin % 3 > 0 or "TENSORSMITH_ISA" in os.environ
    placements, halves, integers = harness.PLACEMENTS[1:], (ts.float16, ts.bfloat16), (ts.int64, ts.int32, ts.uint8)
    # Arithmetic on bool is refused by the public functions already; moves and scalar functions take it.
    if name in ELEMENTARY or operators()[name].geometry is not None:
        integers += (ts.bool,)
    if few or name in ELEMENTARY:
        placements, halves = pick(placements), pick(halves)
    return (harness.BASIC, *placements), (ts.float64, *halves, *pick(integers, 1 if few else 2))


@pytest.mark.parametrize("name", NAMES)
def test_against_the_reference(name):
    operator = operators()[name]
    accepted = 0
    for number, sample in enumerate(harness.samples(operator)):
        placements, dtypes = runs(name, number)
        for placement in placements:
            harness.check_against_reference(operator, sample, ts.float32, placement, zlib.crc32(name.encode()))
        for dtype in dtypes:
            try:
                harness.program_of(operator, [
                    harness.as_tensor(x) if isinstance(x, np.ndarray) else x
                    for x in harness.arrays(sample, dtype, harness.BASIC, np.random.default_rng(0))
                ], sample.attrs)  # fmt: skip
            except REFUSALS:
                continue  # refused when the graph is built: such a call is an error, checked with the operator's family
            accepted += 1
            harness.check_against_reference(operator, sample, dtype)
    assert accepted


@pytest.mark.parametrize("name", NAMES)
def test_gradients(name):
    operator = operators()[name]
    for sample in harness.samples(operator):
        given = harness.arrays(sample, ts.float64, harness.BASIC, np.random.default_rng(1))
        operands = [harness.as_tensor(x) if isinstance(x, np.ndarray) else x for x in given]
        needs = [x for i, x in enumerate(operands) if isinstance(x, ts.Tensor) and x.dtype in (ts.float64, ts.complex128)
                 and i not in sample.fixed]  # fmt: skip
        for x in needs:
            x.requires_grad_()
        if not needs:
            continue
        call = lambda *xs, operator=operator, sample=sample: operator(*xs, **sample.attrs)
        if harness.DEVICE != "cpu":  # differences are the host's work: its gradients are the right ones
            harness.check_gradients_against_host(operator, sample)
            continue
        assert gradcheck(call, operands, atol=1e-5)
        results = call(*operands)
        if any(r.requires_grad for r in (results if isinstance(results, tuple | list) else [results])):
            assert gradgradcheck(call, operands, atol=1e-4)


# What has a meaning for complex numbers (with all views); any other operator refuses them when its graph is built, or is
# only called where the dtype was checked before (networks' normalisations, random distributions).
CHECKED_BEFORE = {
    "adafactor_step", "adafactor_vector_step", "batch_norm", "batch_norm_evaluation", "gaussian_nll_loss", "group_norm",
    "instance_norm", "layer_norm", "local_response_norm", "normal", "running_statistic", "uniform",
}  # fmt: skip
COMPLEX = """
    abs acos acosh add add_alpha addbmm addcdiv addcmul addmm addmv addr angle asin asinh atan atanh baddbmm bilinear
    bmm cat channel_shuffle clone col2im complex_part conj conj_physical constant_pad_nd contiguous conv_transpose
    convolution copy copy_of cos cosh count_nonzero cumprod cumsum dense diag_embed diagonal div dot einsum embedding eq exp
    exp2 expand expm1 flip float_power gather getitem householder_product im2col index index_add index_copy index_fill index_put
    index_select isclose isfinite isinf isnan isreal kron l1_loss ldexp lerp linalg_cross linear log log10 log1p log2
    logaddexp logcumsumexp logical_and logical_not logical_or logical_xor logsumexp masked_fill matmul matrix_exp mean mm
    module_boundary mul mv nan_to_num ne neg nuclear_norm ones_of outer pad_taking parameters_to_vector permute
    pixel_shuffle pixel_unshuffle pow prod put reciprocal replace_number repeat repeat_interleave reshape roll rsqrt rsub
    scale_gradient scale_gradient_by scatter scatter_add scatter_reduce segment_reduce select sgn sigmoid silu sin sinc sinh
    slice softsign solve split sqrt square squeeze stack stack_rows std std_mean sub sub_alpha sum sum_to_size svdvals t take
    tan tanh tanhshrink tensordot to_copy total_norm transpose tril triu unbind unfold unsqueeze var var_mean vector_norm
    view view_as_real view_of_base where write_view zero_gradient zeros_of
""".split()
COMPLEX = sorted({*COMPLEX, *(name for name in NAMES if operators()[name].geometry is not None)} - {"view_as_complex"})


def complex_operands(sample, dtype):
    given = harness.arrays(sample, dtype, harness.BASIC, np.random.default_rng(1))
    return [harness.as_tensor(x) if isinstance(x, np.ndarray) else x for x in given]


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_numbers(name):
    operator = operators()[name]
    for sample in harness.samples(operator):
        try:
            operands = complex_operands(sample, ts.complex128)
            harness.program_of(operator, operands, sample.attrs)
        except REFUSALS:
            assert len(harness.samples(operator)) > 1, "its only sample is refused"
            continue
        # vector_norm finds the largest |x| by equality, for which the reference, unrounded or of another hypot, is too exact.
        if name != "vector_norm" or harness.DEVICE == "cpu":
            harness.check_against_reference(operator, sample, ts.complex128, "transposed")
        if name != "vector_norm":
            harness.check_against_reference(operator, sample, ts.complex64)
        if harness.DEVICE != "cpu":
            continue
        needs = [x for i, x in enumerate(operands) if isinstance(x, ts.Tensor) and x.dtype.kind in "fc"
                 and i not in sample.fixed]  # fmt: skip
        call = lambda *xs, operator=operator, sample=sample: operator(*xs, **sample.attrs)
        results = call(*[x.requires_grad_() if any(x is n for n in needs) else x for x in operands])
        if any(r.requires_grad for r in (results if isinstance(results, tuple | list) else [results])):
            assert gradcheck(call, operands, atol=1e-5)
            if name == "svdvals":
                with pytest.raises(NotImplementedError, match="second derivative"):
                    gradgradcheck(call, operands)
                continue
            assert gradgradcheck(call, operands, atol=1e-4)


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(COMPLEX) - CHECKED_BEFORE))
def test_complex_numbers_are_refused_by_every_other_operator(name):
    operator = operators()[name]
    for sample in harness.samples(operator):
        operands = complex_operands(sample, ts.complex128)
        if any(isinstance(x, ts.Tensor) and x.is_complex() for x in operands):
            with pytest.raises(REFUSALS):
                harness.program_of(operator, operands, sample.attrs)
