"""Every operator's graph: run by the reference interpreter, and by eager execution on the CPU, on the same arrays.

The table of operators is the package's own (`eager.operator.operators()`). What the operands of an operator look like
follows from the scalar table (one row, one elementwise operator) or from the names of its parameters; where that is not
enough it stands in `SAMPLES`. An operator that cannot be given operands fails `test_operators.py`, which names it.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import tensorsmith as ts
from tensorsmith.core.dtypes import DType
from tensorsmith.eager.operator import Operator, Program, operators
from tensorsmith.ops.creation import array_of
from tensorsmith.scalar.table import TABLE as SCALARS, Typing
from tensorsmith.targets.reference import interpret

DEVICE = os.environ.get("TENSORSMITH_TEST_DEVICE", "cpu").removesuffix("-emulated")  # of the operands (conftest.py)
BASIC = "contiguous"
PLACEMENTS = (BASIC, "transposed", "expanded", "sliced", "offset")


@dataclass(frozen=True)
class Data:
    """One tensor operand: its shape, the interval its values lie in, and its dtype where that is not the sample's.

    rising: sorted along the last axis
    """

    shape: tuple[int, ...]
    low: float = 0.2
    high: float = 0.9
    dtype: DType | None = None
    rising: bool = False


@dataclass(frozen=True)
class Sample:
    """Operands (Data or Python numbers) and attributes of one call.

    fixed: operands whose gradient is not the derivative, on purpose and as PyTorch's
    unknown: operands whose derivative nobody has: asking for it raises
    """

    operands: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    fixed: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()

    def at(self, shape: tuple[int, ...]) -> Sample:
        """The same with every tensor operand of another shape (elementwise operators)."""
        changed = [Data(shape, o.low, o.high, o.dtype) if isinstance(o, Data) else o for o in self.operands]
        return Sample(tuple(changed), self.attrs, self.fixed, self.unknown)


def _index(shape: tuple[int, ...], high: int) -> Data:
    return Data(shape, 0, high, ts.int64)


def _mask(shape: tuple[int, ...]) -> Data:
    return Data(shape, 0, 2, ts.bool)


MATRIX = Data((3, 4))
SIGNED = Data((3, 4), -2.0, 2.0)
COMPLEX = Data((3, 4), -2.0, 2.0, ts.complex128)
_ROWS = {"axes": (1,), "keepdim": False}
_KEY = (42, 8)  # key and offset of a random operator


def _signed(**attrs: Any) -> list[Sample]:
    """One signed operand, and the same attributes."""
    return [Sample((SIGNED,), attrs)]


def _stream(*numbers: float) -> list[Sample]:
    """A target whose values do not matter, a random stream and parameters of a distribution."""
    return [Sample((MATRIX, *_KEY, *numbers))]

# Windows of pooling: tiles, overlapping ones in padding, more taps than one kernel takes; blocks of two axes.
_WINDOWS = [
    {"kernel": kernel, "stride": stride, "padding": padding, "dilation": (1, 1), "ceil_mode": ceil_mode}
    for kernel, stride, padding, ceil_mode in (
        ((5, 2), (5, 2), (0, 0), False), ((3, 2), (2, 1), (1, 1), True), ((7, 6), (1, 2), (3, 3), False)
    )
]
_BLOCKS = [
    {"kernel": (2, 2), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)},
    {"kernel": (2, 2), "stride": (2, 2), "padding": (1, 0), "dilation": (2, 1)},
]

# Where values of [0.2, 0.9] are outside the domain of a scalar function, or at a place where it is not smooth.
_INTERVALS: dict[str, tuple[float, float]] = {
    "acosh": (1.2, 2.0), "lgamma": (0.5, 3.0),
    "digamma": (0.7, 3.0), "relu": (-2.0, 2.0), "abs": (-2.0, 2.0), "neg": (-2.0, 2.0), "tanh": (-2.0, 2.0),
    "sigmoid": (-4.0, 4.0), "erf": (-2.0, 2.0), "sin": (-4.0, 4.0), "cos": (-4.0, 4.0), "exp": (-3.0, 3.0),
}  # fmt: skip

# Operators that round to a narrower dtype between their steps on purpose: the reference, which does not round inside a
# graph, and derivatives say nothing about them. Their own tests compare them with PyTorch.
ROUNDS_INSIDE = {"muon_step"}


def names() -> list[str]:
    """The operators that are compared with the reference and with derivatives; those with a dot are other rooms' own."""
    others = ("minitorch.", "torch.", "amp.")
    return sorted(name for name in operators() if name not in ROUNDS_INSIDE and not name.startswith(others))


SAMPLES: dict[str, list[Sample]] = {
    "view_of_base": [Sample((MATRIX,), {"shape": (2, 2), "strides": (4, 2), "offset": 1, "base_strides": (4, 1)})],
    "write_view": [
        Sample(
            (MATRIX, Data((2, 2))), {"shape": (2, 2), "strides": (4, 2), "offset": 1, "base_strides": (4, 1)}
        ),
        Sample(
            (MATRIX, Data((3, 2))), {"shape": (3, 2), "strides": (1, 3), "offset": 3, "base_strides": (1, 3)}
        ),
    ],
    "view_as_real": [Sample((COMPLEX,))],
    "view_as_complex": [Sample((Data((3, 4, 2)),))],
    "complex_part": [Sample((COMPLEX,), {"number": number}) for number in (0, 1)],
    "isreal": [Sample((COMPLEX,))],
    "conj": [Sample((COMPLEX,))],
    "complex": [Sample((Data((3, 4), -2.0, 2.0, ts.float64), Data((3, 4), -2.0, 2.0, ts.float64)))],
    "polar": [Sample((Data((3, 4), -2.0, 2.0, ts.float64), Data((3, 4), -3.0, 3.0, ts.float64)))],
    "matmul": [Sample((Data((2, 3, 4)), Data((4, 5)))), Sample((Data((4,)), Data((4,))))],
    "mm": [Sample((MATRIX, Data((4, 5))))],
    "bmm": [Sample((Data((2, 3, 4)), Data((2, 4, 5))))],
    "mv": [Sample((MATRIX, Data((4,))))],
    "dot": [Sample((Data((5,)), Data((5,))))],
    "outer": [Sample((Data((3,)), Data((5,))))],
    "addmm": [Sample((Data((5,)), MATRIX, Data((4, 5))), {"beta": 0.5, "alpha": 2.0})],
    "addmv": [Sample((Data((3,)), MATRIX, Data((4,))), {"beta": 0.5, "alpha": 2.0})],
    "baddbmm": [Sample((Data((3, 5)), Data((2, 3, 4)), Data((2, 4, 5))), {"beta": 0.5, "alpha": 2.0})],
    "addbmm": [Sample((Data((3, 5)), Data((2, 3, 4)), Data((2, 4, 5))), {"beta": 0.5, "alpha": 2.0})],
    "addr": [Sample((MATRIX, Data((3,)), Data((4,))), {"beta": 0.5, "alpha": 2.0})],
    "sum": [Sample((Data((2, 3, 4)),), {"axes": axes, "keepdim": False, "dtype": None}) for axes in ((0, 2), (1,))],
    "any": [Sample((_mask((3, 4)),), _ROWS)],
    "all": [Sample((_mask((3, 4)),), _ROWS)],
    "argmax": [Sample((MATRIX,), {"axis": axis, "keepdim": False}) for axis in (1, None)],
    "argmin": [Sample((MATRIX,), {"axis": axis, "keepdim": False}) for axis in (0, None)],
    "vector_norm": [Sample((MATRIX,), _ROWS | {"order": order}) for order in (2.0, 1.0, 3.0, float("inf"))],
    "einsum": [Sample((MATRIX, Data((4, 5))), {"equation": "ij,jk->ki"})],
    "tensordot": [Sample((MATRIX, Data((5, 4))), {"of_a": (1,), "of_b": (1,)})],
    "linalg_cross": [Sample((Data((3, 4)), Data((3, 4))), {"axis": 0})],
    "full": [Sample((2.5,), {"shape": (3, 4), "dtype": ts.float32})],
    "first_counters": [Sample((5,), {"extents": (2, 3), "stride": 4})],
    "arange": [Sample((1, 2), {"length": 5, "dtype": ts.int64}), Sample((0.5, 0.25), {"length": 5, "dtype": ts.float32})],
    "linspace": [Sample((0.5, 2.0), {"steps": 7, "dtype": ts.float64})],
    "eye": [Sample((1,), {"n": 3, "m": 5, "dtype": ts.float32})],
    "to_copy": [Sample((MATRIX,), {"dtype": ts.float64}), Sample((MATRIX,), {"dtype": ts.int32}, fixed=(0,)),
                Sample((MATRIX,), {"dtype": ts.float32}, fixed=(0,))],  # differences of float32 say little
    "where": [Sample((_mask((3, 4)), MATRIX, Data((3, 4), -1.0, 0.0)))],
    "nextafter": [Sample((MATRIX, MATRIX), fixed=(0, 1))],
    "add_alpha": [Sample((MATRIX, Data((4,)), 3))],
    "sub_alpha": [Sample((MATRIX, Data((4,)), 3))],
    "copy": [Sample((MATRIX, Data((4,))))],
    "sum_to_size": [Sample((Data((2, 3, 4)),), {"shape": (3, 1)})],
    "stack_rows": [Sample((MATRIX, MATRIX), {"shape": (2, 3, 4)})],
    "getitem": [Sample((Data((3, 4, 5)),), {"steps": ((0, 1), (2,), (1, 1, 2, 2))})],
    "index": [Sample((Data((3, 4)), _index((5,), 3)), {"axes": (0,)}),
              Sample((Data((3, 4)), _index((5,), 3), _index((2, 1), 4)), {"axes": (0, 1)})],
    "index_put": [Sample((Data((3, 4)), Data((4,)), _index((5,), 3)), {"axes": (0,), "accumulate": True})],
    "threshold": _signed(limit=0.5, value=-1.0),
    "hardtanh": _signed(low=-1.0, high=1.0),
    "prelu": [Sample((SIGNED, Data((4,)))), Sample((SIGNED, Data((1,))))],
    "elu": _signed(alpha=1.5, scale=1.0, input_scale=1.0) + _signed(alpha=1.0, scale=2.0, input_scale=0.5),
    "leaky_relu": _signed(negative_slope=0.1),
    "softplus": _signed(beta=1.0, threshold=20.0) + _signed(beta=2.0, threshold=1.0),
    "gelu": _signed(approximate="none") + _signed(approximate="tanh"),
    "hardshrink": _signed(lambd=0.5),
    "softshrink": _signed(lambd=0.5),
    "glu": [Sample((SIGNED,), {"dim": 1})],
    "huber_loss": [Sample((MATRIX, Data((3, 4), 0.5, 3.0)), {"mode": "mean", "delta": 1.0})],
    "smooth_l1_loss": [Sample((MATRIX, Data((3, 4), 0.5, 3.0)), {"mode": "sum", "beta": 1.0})],
    "kl_div": [Sample((MATRIX, MATRIX), {"mode": "mean", "log_target": log_target}) for log_target in (False, True)],
    "binary_cross_entropy": [
        Sample((MATRIX, MATRIX), {"mode": "mean"}),
        Sample((MATRIX, MATRIX, MATRIX), {"mode": "none"}, fixed=(2,)),  # the weights count as constants
    ],
    "binary_cross_entropy_with_logits": [
        Sample((SIGNED, MATRIX), {"mode": "mean", "weighted": False}),
        Sample((SIGNED, MATRIX, MATRIX, Data((4,))), {"mode": "none", "weighted": True}),
    ],
    "embedding": [
        Sample((_index((2, 3), 5), Data((5, 4))), {"padding": -1, "by_frequency": False}),
        # The row of padding learns nothing, and by_frequency divides a row's gradient by how often it was read.
        Sample((_index((2, 3), 5), Data((5, 4))), {"padding": 1, "by_frequency": True}, fixed=(1,)),
    ],
    "dropout": [Sample((SIGNED, *_KEY), {"p": 0.5, "channels": channels}) for channels in (False, True)],
    "alpha_dropout": [Sample((SIGNED, *_KEY), {"p": 0.3, "channels": False})],
    "rand": [Sample(_KEY, {"shape": (3, 4), "dtype": dtype}) for dtype in (ts.float32, ts.float64, ts.bfloat16)],
    "randn": [Sample(_KEY, {"shape": (3, 4), "dtype": dtype}) for dtype in (ts.float32, ts.float64)],
    "randint": [Sample((*_KEY, -3, 50), {"shape": (3, 4), "dtype": ts.int64})],
    "uniform": _stream(-1.0, 2.0),
    "normal": _stream(0.5, 2.0),
    "exponential": _stream(1.5),
    "log_normal": _stream(0.0, 0.5),
    "cauchy": _stream(0.0, 1.0),
    "geometric": _stream(0.3),
    "bernoulli": _stream(0.3),
    "embedding_bag": [
        Sample((_index((6,), 5), _index((3,), 1), Data((5, 4))), {"mean": mean, "padding": -1, "by_frequency": False})
        for mean in (False, True)
    ] + [
        Sample(
            (_index((6,), 5), _index((3,), 1), Data((5, 4)), Data((6,))), {"mean": False, "padding": 1, "by_frequency": False}
        ),
        Sample(
            (_index((6,), 5), _index((3,), 1), Data((5, 4))), {"mean": True, "padding": 1, "by_frequency": True}, fixed=(2,)
        ),
    ],
    "embedding_bag_max": [Sample((_index((6,), 5), _index((3,), 1), Data((5, 4))), {"padding": p}) for p in (-1, 1)],
    "ctc_loss": [
        Sample(
            (Data((6, 3, 4), -3.0, -0.2), Data((3, 2), 1, 4, ts.int64), Data((3,), 5, 7, ts.int64), _index((3,), 3)),
            {"mode": mode, "blank": 0, "zero_infinity": mode == "sum"},
        )
        for mode in ("mean", "sum", "none")
    ],
    "linear_cross_entropy": [
        Sample(
            (Data((5, 4), -1, 1), Data((3, 4), -1, 1), _index((5,), 3), *([Data((3,))] if bias else [])),
            {"mode": "none" if bias else "sum", "ignore_index": 1, "has_bias": bias},
        )
        for bias in (False, True)
    ],
    "nll_loss": [Sample((Data((5, 3)), _index((5,), 3)), {"mode": mode, "ignore_index": -100}) for mode in ("mean", "none")],
    "cross_entropy": [
        Sample((Data((5, 3), -2, 2), _index((5,), 3)), {"mode": mode, "ignore_index": 1, "smoothing": smoothing})
        for mode, smoothing in (("mean", 0.0), ("sum", 0.1), ("none", 0.0))
    ],
    "cross_entropy_of_probabilities": [
        Sample((Data((5, 3)), Data((5, 3))), {"mode": "mean", "smoothing": 0.1}),
        Sample((Data((5, 3)), Data((5, 3)), Data((3,))), {"mode": "none", "smoothing": 0.1}),
        Sample((Data((2, 3, 4)), Data((2, 3, 4)), Data((3,))), {"mode": "mean", "smoothing": 0.0}),
    ],
    "linear": [Sample((MATRIX, Data((5, 4)), Data((5,)))), Sample((Data((2, 3, 4)), Data((5, 4))))],
    "bilinear": [Sample((MATRIX, Data((3, 2)), Data((5, 4, 2)), Data((5,))))],
    "convolution": [
        Sample((Data((2, 4, 7)), Data((6, 2, 3)), Data((6,))),
               {"stride": (2,), "padding": ((1,), (2,)), "dilation": (2,), "groups": 2}),
        Sample((Data((2, 5, 4)), Data((3, 2, 2, 3))),
               {"stride": (1, 2), "padding": ((0, 1), (0, 1)), "dilation": (2, 1), "groups": 1}),
        Sample((Data((2, 2, 3, 3, 2)), Data((2, 1, 2, 2, 1)), Data((2,))),
               {"stride": (1, 1, 1), "padding": ((0, 1, 0),) * 2, "dilation": (1, 1, 1), "groups": 2}),
    ],
    "conv_transpose": [
        Sample((Data((2, 4, 3)), Data((4, 3, 3)), Data((6,))),
               {"stride": (3,), "padding": (1,), "output_padding": (2,), "dilation": (2,), "groups": 2}),
        Sample((Data((2, 3, 2)), Data((2, 3, 2, 3))),
               {"stride": (1, 2), "padding": (1, 0), "output_padding": (0, 1), "dilation": (1, 1), "groups": 1}),
    ],
    "mse_loss": [Sample((MATRIX, Data((3, 4), 1.0, 2.0)), {"mode": mode}) for mode in ("mean", "none")],
    "argsort": _signed(axis=1, descending=False) + _signed(axis=0, descending=True),
    "sort": _signed(axis=1, descending=False) + _signed(axis=0, descending=True),
    "topk": _signed(k=2, axis=1, largest=True),
    "kthvalue": _signed(k=2, axis=1, keepdim=False),
    "median": _signed(axis=1, keepdim=True, skip_nan=False) + _signed(axis=1, keepdim=False, skip_nan=True),
    "entr": [Sample((MATRIX,))],
    "median_whole": _signed(skip_nan=False) + _signed(skip_nan=True),
    "gather": [Sample((MATRIX, _index((3, 2), 4)), {"axis": 1})],
    "take": [Sample((MATRIX, _index((2, 3), 12)))],
    "index_select": [Sample((MATRIX, _index((5,), 4)), {"axis": 1})],
    "index_fill": [Sample((MATRIX, _index((2,), 4), 2.5), {"axis": 1})],
    "index_add": [Sample((MATRIX, _index((5,), 4), Data((3, 5))), {"axis": 1, "reduce": "add", "alpha": 2.0})],
    "index_copy": [Sample((MATRIX, Data((1,), 1, 2, ts.int64), Data((3, 1))), {"axis": 1, "reduce": "set", "alpha": 1})],
    "put": [Sample((MATRIX, _index((5,), 12), Data((5,))), {"reduce": "add"})],
    "scatter": [Sample((MATRIX, Data((3, 1), 1, 2, ts.int64), Data((3, 1))), {"axis": 1, "reduce": "set"})],
    "scatter_add": [Sample((MATRIX, _index((3, 2), 4), Data((3, 2))), {"axis": 1, "reduce": "add"})],
    "scatter_reduce": [
        Sample((MATRIX, _index((3, 2), 4), Data((3, 2))), {"axis": 1, "reduce": reduce, "include_self": include_self})
        for reduce in ("sum", "mean", "amax", "amin", "prod") for include_self in (True, False)
    ],
    "zeta": [Sample((Data((3, 4), 1.5, 5.0), Data((4,), 0.5, 4.0)), fixed=(0,), unknown=(0,))],
    "igamma": [Sample((Data((3, 4), 0.5, 5.0), Data((4,), 0.5, 4.0)), fixed=(0,), unknown=(0,))],
    "igammac": [Sample((Data((3, 4), 0.5, 5.0), Data((4,), 0.5, 4.0)), fixed=(0,), unknown=(0,))],
    **{
        name: [Sample((SIGNED,), fixed=(0,))] for name in
        ("airy_ai", "bessel_j0", "bessel_j1", "modified_bessel_i0", "modified_bessel_i1", "spherical_bessel_j0")
    },
    **{
        name: [Sample((MATRIX,), fixed=(0,))] for name in (
            "bessel_y0", "bessel_y1", "modified_bessel_k0", "modified_bessel_k1", "scaled_modified_bessel_k0",
            "scaled_modified_bessel_k1",
        )
    },
    **{
        name: [Sample((SIGNED, Data((4,), 0.0, 9.0)), fixed=(0, 1))] for name in (
            *[f"{prefix}chebyshev_polynomial_{kind}" for prefix in ("", "shifted_") for kind in "tuvw"],
            "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p",
        )
    },
    "ndtri": [Sample((MATRIX,))],
    **{name: [Sample((Data((3, 4), -12.0, 12.0),))] for name in ("i0", "i0e", "i1", "i1e")},
    "segment_reduce": [
        Sample((MATRIX, Data((3,), 0, 4, ts.int64)), {"axis": 0, "reduce": reduce, "count": 3, "initial": initial})
        for reduce in ("sum", "mean", "max", "min", "prod") for initial in ((None, 1.5) if reduce == "prod" else (0.5,))
    ],
    "gcd": [Sample((_index((3, 4), 20), _index((4,), 30)))],
    "lcm": [Sample((_index((3, 4), 20), _index((4,), 30)))],
    "frexp": [Sample((MATRIX,))],
    "svdvals": [Sample((Data((2, 3, 4)),)), Sample((Data((4, 3)),))],
    # Diagonals far from 0 keep the systems well-conditioned.
    "solve": [
        Sample((Data((2, 3, 3), 0.5), Data((3, 2))), {"left": True}), Sample((Data((2, 2)), Data((3, 2, 2))), {"left": False}),
    ],
    "matrix_exp": [Sample((Data((2, 3, 3), -0.9),))],
    "householder_product": [Sample((Data((2, 4, 3), -0.9), Data((2, 2), -0.9)))],
    "nuclear_norm": [Sample((Data((2, 3, 4)),)), Sample((Data((4, 2)),))],
    "scaled_dot_product_attention": [
        Sample(
            (Data((2, 3, 4), -0.9), Data((2, 5, 4), -0.9), Data((2, 5, 2), -0.9)),
            {"causal": False, "scale": 0.5, "beside": False},
        ),
        Sample((Data((3, 2), -0.9), Data((4, 2), -0.9), Data((4, 3), -0.9)), {"causal": True, "scale": 1.0, "beside": False}),
        Sample(
            (Data((1, 2, 3, 2), -0.9), Data((2, 1, 4, 2), -0.9), Data((4, 3), -0.9), Data((2, 1, 3, 4), -0.9)),
            {"causal": False, "scale": 1.0, "beside": True},
        ),
        Sample(
            (Data((2, 3, 4), -0.9), Data((2, 5, 4), -0.9), Data((2, 5, 2), -0.9), Data((3, 5), 0, 2, ts.bool)),
            {"causal": False, "scale": 1.0, "beside": False},
        ),
        Sample(
            (Data((2, 3, 4), -0.9), Data((2, 5, 4), -0.9), Data((2, 5, 2), -0.9), Data((3, 5), -0.9), *_KEY),
            {"causal": False, "scale": 1.0, "beside": False, "dropout": 0.4},
        ),
    ],
    **{
        name: [
            Sample(
                (Data((3, gates * 2), -0.9), *[Data((3, 2), -0.9)] * states, Data((gates * 2, 2), -0.9), *bias)
            )
            for bias in ((), (Data((gates * 2,)),))
        ]
        for name, gates, states in (
            ("rnn_tanh_step", 1, 1), ("rnn_relu_step", 1, 1), ("gru_step", 3, 1), ("lstm_step", 4, 2),
        )
    },
    **{
        f"{mode}_layer": [
            Sample(
                (
                    Data(shape, -0.9), *[Data((*one, 3, 2), -0.9)] * states, Data((gates * 2, 2), -0.9),
                    Data((gates * 2, 2), -0.9), *[Data((gates * 2,))] * biases,
                ),
                {"runs": runs, "reverse": reverse, "keep": keep},
            )
            for shape, one, biases, runs, reverse, keep in (
                ((3, 3, 2), (1,), 2, ((3, 3),), False, True), ((5, 2), (), 0, ((1, 3), (1, 2)), True, False),
            )
        ]
        for mode, gates, states in (("rnn_tanh", 1, 1), ("rnn_relu", 1, 1), ("gru", 3, 1), ("lstm", 4, 2))
    },
    "adafactor_step": [
        Sample(
            (MATRIX, MATRIX, Data((MATRIX.shape[0], 1)), Data((1, MATRIX.shape[1])), 0.4, 1e-3, 0.1, 0.9, 1e-3, 1.0),
            {"maximize": False, "relative": False},
        )
    ],
    "adafactor_vector_step": [
        Sample((Data((3,)), Data((3,)), Data((3,)), 0.4, 1e-3, 0.1, 0.9, 1e-3, 1.0), {"maximize": True, "relative": False})
    ],
    "attention_weights": [
        Sample((MATRIX,), {"causal": False}), Sample((Data((2, 3, 4)),), {"causal": True}),
        Sample((MATRIX, Data((3, 4))), {"causal": False}),
    ],
    "softmax_backward_data": [Sample((MATRIX, MATRIX), {"dim": 1, "dtype": None})],
    "isclose": [Sample((MATRIX, MATRIX), {"rtol": 0.2, "atol": 0.1, "equal_nan": True})],
    "nan_to_num": _signed(nan=0.5, posinf=None, neginf=None),
    "logit": [Sample((MATRIX,), {"eps": eps}) for eps in (None, 0.3)],
    "polygamma": [Sample((Data((3, 4), 0.7, 3.0),), {"n": n}) for n in (0, 1, 2)],
    "mvlgamma": [Sample((Data((3, 4), 1.2, 3.0),), {"p": 2})],
    "round_decimals": [Sample((SIGNED,), {"decimals": 2}, fixed=(0,))],
    "float_power": [Sample((MATRIX, Data((4,))))],
    "rsub": [Sample((MATRIX, Data((4,))), {"alpha": 2})],
    "searchsorted": [Sample((Data((4,), 0.2, 0.9, rising=True), Data((5,), 0.0, 1.0)), {"right": False})],
    "masked_fill": [Sample((MATRIX, _mask((3, 4)), 2.0))],
    "clamp": [Sample((Data((3, 4), -2, 2), -1.0, 0.5)), Sample((Data((3, 4), -2, 2), Data((4,), -1, 0), Data((4,), 0, 1)))],
    "clamp_min": [Sample((Data((3, 4), -2, 2), -0.5))],
    "clamp_max": [Sample((Data((3, 4), -2, 2), 0.5))],
    "lerp": [Sample((MATRIX, MATRIX, 0.3)), Sample((MATRIX, MATRIX, MATRIX))],
    "addcmul": [Sample((MATRIX, MATRIX, Data((4,)), 0.5))],
    "addcdiv": [Sample((MATRIX, MATRIX, Data((4,)), 0.5))],
    "view": [Sample((MATRIX,), {"shape": (2, 6)})],
    "reshape": [Sample((MATRIX,), {"shape": (2, 6)})],
    "permute": [Sample((Data((2, 3, 4)),), {"axes": (2, 0, 1)})],
    "transpose": [Sample((MATRIX,), {"axes": (1, 0)})],
    "t": [Sample((MATRIX,), {"axes": (1, 0)})],
    "expand": [Sample((Data((3, 1)),), {"shape": (2, 3, 4)})],
    "squeeze": [Sample((Data((3, 1, 4)),), {"axes": (1,)})],
    "unsqueeze": [Sample((MATRIX,), {"axis": 1})],
    "select": [Sample((MATRIX,), {"axis": 1, "index": 2})],
    "slice": [Sample((MATRIX,), {"axis": 1, "start": 1, "length": 2, "step": 2})],
    "diagonal": [Sample((MATRIX,), {"offset": 1, "axis1": 0, "axis2": 1})],
    "unfold": [Sample((MATRIX,), {"axis": 1, "size": 2, "step": 1})],
    "split": [Sample((MATRIX,), {"axis": 1, "sizes": (1, 3)})],
    "replace_number": [Sample((Data(()), 0.5))],
    "split_whole": [Sample((MATRIX,), {"axis": 1, "start": 0, "length": 4, "step": 1})],
    "unbind_only": [Sample((Data((3, 1), -2, 2),), {"axis": 1, "index": 0})],
    "split_with_sizes": [Sample((MATRIX,), {"axis": 1, "sizes": (1, 0, 3)})],
    "unbind": [Sample((MATRIX,), {"axis": 0})],
    "layer_norm": [
        Sample((Data((3, 4)), Data((4,)), Data((4,))), {"axes": 1, "eps": 1e-5, "centred": True, "has_weight": True}),
        Sample((Data((3, 4)),), {"axes": 1, "eps": 1e-5, "centred": False, "has_weight": False}),
    ],
    "batch_norm": [
        Sample((Data(shape), Data((3,)), Data((3,))), {"eps": 0.1, "has_weight": True, **division})
        for shape, division in (
            ((4, 3), {}), ((2, 3, 4), {}), ((2, 3, 4), {"one_kernel": False, "rows": 0}),
            ((2, 3, 4), {"one_kernel": False, "rows": 2}),
        )
    ],  # fmt: skip
    "batch_norm_evaluation": [
        Sample((Data((2, 3, 4)), *[Data((3,))] * 4), {"eps": 0.1, "has_weight": True})
    ],
    "running_statistic": [Sample((Data((3,)), Data((3,))), {"momentum": 0.1, "factor": 1.5})],
    **{
        name: [
            Sample((Data((2, 4, 3)), Data((4,)), Data((4,))), {"groups": groups, "eps": 0.1, "has_weight": True, **more})
            for groups, more in ((2, {}), (4, {"with_variance": True}))
        ]
        for name in ("group_norm", "instance_norm")
    },
    **{
        name: [Sample((Data((2, 5, 6), -2.0, 2.0),), windows | more) for windows in _WINDOWS]
        for name, more in (
            ("max_pool", {}), ("max_pool_with_indices", {}), ("avg_pool", {"count_include_pad": False, "divisor": None})
        )
    },
    **{
        name: [Sample((Data((2, 5, 7), -2.0, 2.0),), {"output": (3, 4)})]
        for name in ("adaptive_avg_pool", "adaptive_max_pool")
    },
    "fractional_max_pool": [
        Sample((Data((2, 3, 6, 7), -2.0, 2.0), Data((2, 3, 2))), {"kernel": (2, 3), "output": (3, 4)}, fixed=(1,))
    ],
    "max_unpool": [Sample((Data((1, 1)), _index((1, 1), 4)), {"output": (4,)})],
    "im2col": [Sample((Data((2, 3, 5, 6)),), attrs) for attrs in _BLOCKS],
    "col2im": [
        Sample((Data((2, 12, count)),), {"output": (5, 6), **attrs}) for attrs, count in zip(_BLOCKS, (20, 9))
    ],
    "pixel_shuffle": [Sample((Data((2, 8, 3, 2)),), {"factor": 2})],
    "pixel_unshuffle": [Sample((Data((2, 2, 6, 4)),), {"factor": 2})],
    "channel_shuffle": [Sample((Data((2, 6, 3)),), {"groups": 2})],
    "upsample_nearest": [
        Sample((Data((2, 3, 4, 5)),), {"output": output, "factors": (None, None), "exact": exact})
        for output, exact in (((8, 10), False), ((3, 7), False), ((2, 9), True))
    ],
    "upsample_weighed": [
        Sample((Data((2, 3, 4, 5)),), {
            "kind": kind, "output": (6, 3), "factors": (1.6, None), "align_corners": corners, "antialias": antialias,
        })
        for kind in ("linear", "cubic") for corners, antialias in ((False, False), (True, False), (False, True))
    ],
    "grid_sample": [
        Sample((Data((2, 3, 4, 5)), Data((2, 3, 2, 2), -1.3, 1.3)), {
            "mode": mode, "padding_mode": padding, "align_corners": corners,
        })
        for mode, padding, corners in (
            ("bilinear", "zeros", False), ("bilinear", "border", True), ("bicubic", "reflection", False),
            ("nearest", "zeros", True),
        )
    ] + [
        Sample((Data((1, 2, 2, 3, 2)), Data((1, 2, 1, 2, 3), -1.3, 1.3)), {
            "mode": "bilinear", "padding_mode": "reflection", "align_corners": True,
        })
    ],
    "affine_grid": [
        Sample((Data((2, 2, 3)),), {"space": (3, 4), "align_corners": False}),
        Sample((Data((2, 3, 4)),), {"space": (2, 1, 3), "align_corners": True}),
    ],
    "local_response_norm": [Sample((Data((2, 5, 3)),), {"size": 3, "alpha": 0.5, "beta": 0.75, "k": 1.0})],
    "rrelu": [Sample((SIGNED, *_KEY), {"lower": 0.1, "upper": 0.5})],
    "soft_margin_loss": [Sample((SIGNED, SIGNED), {"mode": "mean"})],
    "margin_ranking_loss": [Sample((SIGNED, SIGNED, SIGNED), {"mode": "mean", "margin": 0.3})],
    "hinge_embedding_loss": [Sample((MATRIX, Data((3, 4), -1, 0, ts.int64)), {"mode": "mean", "margin": 2.0})],
    "cosine_embedding_loss": [Sample((MATRIX, MATRIX, Data((3,), 1, 2, ts.int64)), {"mode": "sum", "margin": 0.1})],
    "triplet_margin_loss": [Sample((MATRIX, MATRIX), {"mode": "mean", "margin": 1.0})],
    "poisson_nll_loss": [
        Sample((MATRIX, Data((3, 4), 1.2, 4.0)), {"mode": "mean", "log_input": log_input, "full": True, "eps": 1e-8})
        for log_input in (True, False)
    ],
    "gaussian_nll_loss": [Sample((MATRIX, MATRIX, Data((3, 1))), {"mode": "mean", "full": True, "eps": 1e-6})],
    "bounded_variance": [Sample((MATRIX,), {"eps": 0.1})],
    "multilabel_soft_margin_loss": [Sample((SIGNED, MATRIX, Data((4,))), {"mode": "mean"})],
    "multi_margin_loss": [Sample((MATRIX, _index((3,), 4)), {"mode": "mean", "p": p, "margin": 2.0}) for p in (1, 2)],
    "multilabel_margin_loss": [Sample((MATRIX, Data((3, 4), -1, 4, ts.int64)), {"mode": "mean"})],
    "repeat": [Sample((MATRIX,), {"counts": (2, 1, 3)})],
    "repeat_interleave": [Sample((MATRIX,), {"count": 2, "axis": 1})],
    "flip": [Sample((MATRIX,), {"axes": axes}) for axes in ((0,), (0, 1))],
    "roll": [Sample((MATRIX,), {"shifts": (1, -2), "axes": (0, 1)})],
    "rot90": [Sample((MATRIX,), {"turns": turns, "axes": (0, 1)}) for turns in (1, 2, 3)],
    "tril": [Sample((MATRIX,), {"diagonal": diagonal}) for diagonal in (0, -1)],
    "triu": [Sample((MATRIX,), {"diagonal": diagonal}) for diagonal in (0, 2)],
    "cat": [Sample((MATRIX, Data((3, 2)), Data((3, 0))), {"axis": 1})],
    "stack": [Sample((MATRIX, MATRIX), {"axis": 1})],
    "diag_embed": [Sample((MATRIX,), {"offset": 1, "a": 1, "b": 2})],
    "constant_pad_nd": [Sample((MATRIX, 2.5), {"widths": ((1, 2), (0, -1))})],
    "pad_taking": [
        Sample((MATRIX,), {"widths": ((1, 2), (2, 1)), "mode": mode}) for mode in ("replicate", "reflect", "circular")
    ],
    "total_norm": [Sample((MATRIX, Data((5,))), {"norm_type": 2.0})],
    "scale_gradient": [Sample((MATRIX, 0.5))],
    "scale_gradient_by": [Sample((MATRIX, Data(())))],
    "clip_gradient": [Sample((Data((3, 4), -2, 2), 0.5))],
}  # fmt: skip

# What a parameter of a building function is given by its name; every other parameter is a (3, 4) operand.
_BY_NAME: dict[str, Any] = {
    "axes": (1,), "axis": 1, "dim": 1, "keepdim": False, "dtype": None, "correction": 1.0, "mode": "mean",
    "weighted": False, "beta": 1.0, "eps": 1e-5,
}  # fmt: skip


def samples(operator: Operator) -> list[Sample]:
    """Calls of an operator. LookupError where nothing is known about its parameters."""
    found = SAMPLES.get(operator.name)
    if found is not None:
        return found
    row = next((row for row in SCALARS.values() if row.name == operator.name), None)
    if row is not None:
        dtype = ts.int64 if row.typing is Typing.INTEGER else None
        low, high = _INTERVALS.get(operator.name, (0.2, 0.9) if dtype is None else (0, 7))
        return [Sample((Data((3, 4), low, high, dtype),) * row.arity)]
    operands: list[Any] = []
    attrs: dict[str, Any] = {}
    for parameter in inspect.signature(operator.build).parameters.values():
        if parameter.name in _BY_NAME:
            attrs[parameter.name] = _BY_NAME[parameter.name]
        elif parameter.kind is parameter.VAR_POSITIONAL:
            operands += [] if operands else [MATRIX]
        elif parameter.kind is not parameter.VAR_KEYWORD and parameter.default is parameter.empty:
            if parameter.annotation in ("int", "str", "bool", "float", "tuple[int, ...]"):
                raise LookupError(f"operator {operator.name!r}: give its attribute {parameter.name!r} in harness.SAMPLES")
            operands.append(Data((3, 4), -2.0, 2.0) if not operands else MATRIX)
    return [Sample(tuple(operands), attrs)]


def every_sample() -> Iterator[tuple[Operator, Sample]]:
    """All samples of all operators."""
    for operator in operators().values():
        for sample in samples(operator):
            yield operator, sample


def values(random: np.random.Generator, data: Data, dtype: DType) -> np.ndarray:
    """A random array; values differ from each other, so that maxima are unique."""
    if data.rising:
        return np.sort(values(random, replace(data, rising=False), dtype))
    dtype = data.dtype or dtype
    count = int(np.prod(data.shape))
    if dtype.kind == "c":
        parts = [values(random, Data(data.shape, data.low, data.high), ts.float64) for _ in range(2)]
        return np.asarray(parts[0] + 1j * parts[1]).astype(dtype.numpy)
    if dtype.kind == "f":
        places = (np.arange(count) + random.uniform(0.2, 0.8, count)) / max(count, 1)
        return (data.low + (data.high - data.low) * random.permutation(places)).reshape(data.shape).astype(dtype.numpy)
    if data.dtype is None:  # an integer run of a floating sample
        return random.integers(1, 7, data.shape).astype(dtype.numpy)
    return random.integers(int(data.low), int(data.high), data.shape).astype(dtype.numpy)


def placed(array: np.ndarray, placement: str) -> np.ndarray:
    """The same values lying differently in memory; "expanded" repeats the first position of the last axis."""
    if placement == "transposed" and array.ndim:
        return np.asfortranarray(array)
    if placement == "expanded" and array.ndim:
        return np.broadcast_to(np.ascontiguousarray(array[..., :1]), array.shape)
    if placement == "sliced" and array.ndim:
        wide = np.empty((*array.shape[:-1], 2 * array.shape[-1] + 1), array.dtype)
        wide[..., 1::2] = array
        return wide[..., 1::2]
    if placement == "offset":
        flat = np.empty(array.size + 3, array.dtype)
        flat[3:] = array.reshape(-1)
        return flat[3:].reshape(array.shape)
    return np.ascontiguousarray(array).reshape(array.shape)


def as_tensor(array: np.ndarray) -> ts.Tensor:
    """A tensor over an array's memory, read-only views included; on another device, over a copy that lies in the same way."""
    if DEVICE != "cpu":
        return on_device(array)
    if not array.flags.writeable:
        array = np.lib.stride_tricks.as_strided(array.base, array.shape, array.strides)  # a broadcast array
    return ts.from_numpy(array)


def on_device(array: np.ndarray) -> ts.Tensor:
    """A copy of all the memory that an array is a view of, and the same view of it."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    flat = np.lib.stride_tricks.as_strided(owner, (owner.size,), (owner.itemsize,))  # owners have no gaps
    if flat.dtype != array.dtype:
        flat = flat.view(array.dtype)
    offset = (array.__array_interface__["data"][0] - flat.__array_interface__["data"][0]) // array.itemsize
    strides = [stride // array.itemsize for stride in array.strides]
    return ts.from_numpy(flat).to(DEVICE).as_strided(array.shape, strides, offset)


TOLERANCE = {"complex128": 1e-9, "complex64": 3e-5, "float64": 1e-9, "float32": 3e-5, "float16": 4e-3, "bfloat16": 3e-2}


def compare(found: np.ndarray, expected: np.ndarray, where: str) -> None:
    """Floating values within the dtype's tolerance (NaN equal to NaN, infinities exact), everything else exactly."""
    assert found.dtype == expected.dtype and found.shape == expected.shape, (
        f"{where}: {found.dtype}{found.shape}, reference {expected.dtype}{expected.shape}"
    )
    if found.dtype.kind in "iub" or found.dtype.name not in TOLERANCE:
        assert np.array_equal(found, expected), f"{where}: {found} reference {expected}"
        return
    tolerance = TOLERANCE[found.dtype.name]
    wide = np.complex128 if found.dtype.kind == "c" else np.float64
    a, b = found.astype(wide), expected.astype(wide)
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True, err_msg=where)


def arrays(sample: Sample, dtype: DType, placement: str, random: np.random.Generator) -> list[Any]:
    """Operands of one call as arrays (numbers stay numbers)."""
    return [placed(values(random, o, dtype), placement) if isinstance(o, Data) else o for o in sample.operands]


def program_of(operator: Operator, operands: Sequence[Any], attrs: dict[str, Any]) -> Program:
    """The program of a call on these operands."""
    return operator.program([x.layout if isinstance(x, ts.Tensor) else x.__class__ for x in operands], attrs)


def check_against_reference(
    operator: Operator, sample: Sample, dtype: DType, placement: str = BASIC, seed: int = 0
) -> None:
    """The operator and each of its first gradients, eagerly and by the reference, on the same arrays.

    Raises what the operator raises for a dtype it refuses.
    """
    random = np.random.default_rng(seed)
    given = arrays(sample, dtype, placement, random)
    operands = [as_tensor(x) if isinstance(x, np.ndarray) else x for x in given]
    program = program_of(operator, operands, sample.attrs)
    where = f"{operator.name} {sample} {dtype.name} {placement}"
    results = operator(*operands, **sample.attrs)
    results = [results] if isinstance(results, ts.Tensor) else list(results)
    expected = interpret(program.graph, given)
    assert len(results) == len(expected)
    placed_elsewhere = any(isinstance(x, ts.Tensor) for x in operands)
    for result, right in zip(results, expected):
        assert not placed_elsewhere or result.device.type == DEVICE, f"{where}: a result on {result.device}"
        compare(array_of(result), right, where)
    needs = tuple(
        isinstance(x, ts.Tensor) and x.dtype.kind in "fc" and i not in sample.unknown for i, x in enumerate(operands)
    )
    differentiable = tuple(node.dtype.kind in "fc" for node in program.graph.outputs)
    if not any(needs) or not any(differentiable):
        return
    backward = program.backward(needs, differentiable)
    saved = [operands[w.number] if w.kind == "input" else results[w.number] for w in backward.saved]
    grads = [as_tensor(placed(values(random, Data(results[i].layout.shape, -1, 1), results[i].dtype), placement))
             for i in backward.grad_outputs]  # fmt: skip
    if not backward.backward.graph.outputs:
        return
    found = backward(*saved, *grads)
    found = [found] if isinstance(found, ts.Tensor) else list(found)
    # The reference goes on from its own results: which element is the largest may hang on the last bit of one.
    kept = [operands[w.number] if w.kind == "input" else expected[w.number] for w in backward.saved]
    right = interpret(backward.backward.graph, [array_of(x) if isinstance(x, ts.Tensor) else x for x in (*kept, *grads)])
    for number, (a, b) in enumerate(zip(found, right)):
        compare(array_of(a), b, f"gradient {number} of {where}")


def check_gradients_against_host(operator: Operator, sample: Sample) -> None:
    """First and second gradients of an operator on the device and on the host, of the same numbers."""
    random = np.random.default_rng(1)
    given = arrays(sample, ts.float64, BASIC, random)
    found: list[list[np.ndarray]] = []
    weights: list[np.ndarray] = []

    def weighted(tensors: Sequence[Any]) -> ts.Tensor:
        """A sum with weights that are the same on both sides."""
        total = ts.zeros((), dtype=ts.float64, device=tensors[0].device)
        for tensor in tensors:
            if len(weights) == drawn[0]:
                weights.append(random.uniform(-1, 1, tensor.shape))
            factor = ts.from_numpy(weights[drawn[0]]).to(tensor.device)
            total = total + (ts.view_as_real(tensor).sum(-1) if tensor.is_complex() else tensor).double().mul(factor).sum()
            drawn[0] += 1
        return total

    for place in (lambda x: ts.tensor(x), as_tensor):
        drawn = [0]
        operands = [place(x) if isinstance(x, np.ndarray) else x for x in given]
        needs = [x.requires_grad_() for i, x in enumerate(operands)
                 if isinstance(x, ts.Tensor) and x.dtype.kind in "fc" and i not in sample.unknown]  # fmt: skip
        results = operator(*operands, **sample.attrs)
        results = [r for r in ([results] if isinstance(results, ts.Tensor) else results) if r.requires_grad]
        if not needs or not results:
            return
        first = [g for g in ts.autograd.grad(weighted(results), needs, create_graph=True, allow_unused=True) if g is not None]
        again = [g for g in first if g.requires_grad]
        second = ts.autograd.grad(weighted(again), needs, allow_unused=True) if again else ()
        found.append([array_of(g.detach()).copy() for g in (*first, *[g for g in second if g is not None])])
    assert len(found[0]) == len(found[1])
    for number, (right, mine) in enumerate(zip(*found)):
        compare(mine, right, f"gradient {number} of {operator.name} {sample}")
