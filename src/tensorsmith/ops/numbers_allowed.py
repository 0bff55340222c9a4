"""Which operators of two operands take Python numbers, and at which place: PyTorch's table, by name.

`2 - x` is right everywhere; `ts.maximum(x, 2)` is refused, because `maximum` is of tensors.
"""

from __future__ import annotations

from typing import Any

from tensorsmith.tensor.tensor import Tensor

# Even two numbers: they become a tensor of no dimensions.
_BOTH = frozenset({"add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "floor_divide"})

# A number at either place beside a tensor.
_EITHER = frozenset("""
    bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift float_power pow remainder xlog1py xlogy zeta
    chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w hermite_polynomial_h
    hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p shifted_chebyshev_polynomial_t
    shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v shifted_chebyshev_polynomial_w
""".split())

# A number as the second operand only.
_SECOND = frozenset({"copysign", "eq", "fmod", "ge", "gt", "le", "lt", "ne"})


def check_numbers(name: str, first: Any, second: Any, argument: str = "other") -> None:
    """Refuse Python numbers where an operator wants tensors."""
    name = name.removesuffix("_")
    numbers = (not isinstance(first, Tensor), not isinstance(second, Tensor))
    if numbers == (False, False) or name in _BOTH:
        return
    if numbers == (True, False):
        allowed = name in _EITHER
    else:
        allowed = numbers == (False, True) and (name in _EITHER or name in _SECOND)
    if not allowed:
        which = ("input", 1, first) if numbers[0] else (argument, 2, second)
        raise TypeError(
            f"{name}(): argument '{which[0]}' (position {which[1]}) must be Tensor, not {type(which[2]).__name__}; make it a "
            f"tensor with ts.tensor({which[2]!r})"
        )


__all__ = ["check_numbers"]
