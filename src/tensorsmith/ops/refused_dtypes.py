"""Dtypes that operators refuse although their formula has a meaning for them: PyTorch's table.

A program that runs here must run there, and one that catches the error there must catch it here.
"""

from __future__ import annotations

from tensorsmith.eager.operator import operators

# Kinds of dtype -> the operators that refuse them: of the dtype that pointwise operands promote to, of the first operand else.
_REFUSED = {
    "b": """abs bitwise_left_shift bitwise_right_shift ceil clamp div_floor div_trunc dot floor
            floor_divide fmod kthvalue linalg_cross median median_whole mvlgamma pow remainder round threshold topk trunc""",
    "biu": """bernoulli frac gaussian_nll_loss hypot kl_div logaddexp logaddexp2 logcumsumexp
              multilabel_soft_margin_loss nextafter round_decimals soft_margin_loss""",
}


def enter() -> None:
    """Tell the operators, which all have to be there."""
    for kinds, names in _REFUSED.items():
        for name in names.split():
            operators()[name].refuses = kinds
