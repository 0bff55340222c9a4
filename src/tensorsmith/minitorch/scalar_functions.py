"""Module 1: functions of Scalars, each a `forward` on floats and a `backward` that multiplies by the derivative."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorsmith.minitorch import operators
from tensorsmith.minitorch.autodiff import Context
from tensorsmith.minitorch.student_line import at_method

if TYPE_CHECKING:
    from tensorsmith.minitorch.scalar import Scalar, ScalarLike


def wrap_tuple(x: Any) -> tuple[Any, ...]:
    """A tuple stays, any other value becomes a tuple of one."""
    return x if isinstance(x, tuple) else (x,)


def unwrap_tuple(x: tuple[Any, ...]) -> Any:
    """The value of a tuple of one; longer tuples stay."""
    return x[0] if len(x) == 1 else x


class ScalarFunction:
    """A function of Scalars, never instantiated.

    `forward(ctx, *floats)` returns a float, `backward(ctx, d_output)` a derivative for each input.
    """

    @classmethod
    def _backward(cls, ctx: Context, d_out: float) -> tuple[float, ...]:
        return wrap_tuple(cls.backward(ctx, d_out))  # type: ignore[attr-defined]

    @classmethod
    def _forward(cls, ctx: Context, *inps: float) -> float:
        return cls.forward(ctx, *inps)  # type: ignore[attr-defined, no-any-return]

    @classmethod
    def apply(cls, *vals: ScalarLike) -> Scalar:
        """Compute on Scalars or numbers, and record how the result was made."""
        number = scalar.Scalar
        scalars = [v if isinstance(v, number) else number(v) for v in vals]
        ctx = Context(False)
        out = cls._forward(ctx, *[s.data for s in scalars])
        if not isinstance(out, float):
            raise TypeError(
                f"{cls.__name__}.forward must return a float, got {type(out).__name__} {out!r}{at_method(cls, 'forward')}"
            )
        return number(out, scalar.ScalarHistory(cls, ctx, scalars))


class Add(ScalarFunction):
    """x + y"""

    @staticmethod
    def forward(ctx: Context, a: float, b: float) -> float:
        return a + b

    @staticmethod
    def backward(ctx: Context, d_output: float) -> tuple[float, float]:
        return d_output, d_output


class Mul(ScalarFunction):
    """x y"""

    @staticmethod
    def forward(ctx: Context, a: float, b: float) -> float:
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx: Context, d_output: float) -> tuple[float, float]:
        a, b = ctx.saved_values
        return d_output * b, d_output * a


class Inv(ScalarFunction):
    """1 / x"""

    @staticmethod
    def forward(ctx: Context, a: float) -> float:
        ctx.save_for_backward(a)
        return operators.inv(a)

    @staticmethod
    def backward(ctx: Context, d_output: float) -> float:
        (a,) = ctx.saved_values
        return operators.inv_back(a, d_output)


class Neg(ScalarFunction):
    """-x"""

    @staticmethod
    def forward(ctx: Context, a: float) -> float:
        return -a

    @staticmethod
    def backward(ctx: Context, d_output: float) -> float:
        return -d_output


class Log(ScalarFunction):
    """log(x + 1e-6)"""

    @staticmethod
    def forward(ctx: Context, a: float) -> float:
        ctx.save_for_backward(a)
        return operators.log(a)

    @staticmethod
    def backward(ctx: Context, d_output: float) -> float:
        (a,) = ctx.saved_values
        return operators.log_back(a, d_output)


class Exp(ScalarFunction):
    """e^x"""

    @staticmethod
    def forward(ctx: Context, a: float) -> float:
        out = operators.exp(a)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Context, d_output: float) -> float:
        (out,) = ctx.saved_values
        return d_output * out  # type: ignore[no-any-return]


class Sigmoid(ScalarFunction):
    """1 / (1 + exp(-x)); its derivative is s (1 - s)"""

    @staticmethod
    def forward(ctx: Context, a: float) -> float:
        out = operators.sigmoid(a)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Context, d_output: float) -> float:
        (out,) = ctx.saved_values
        return d_output * out * (1.0 - out)  # type: ignore[no-any-return]


class ReLU(ScalarFunction):
    """x if x > 0, else 0"""

    @staticmethod
    def forward(ctx: Context, a: float) -> float:
        ctx.save_for_backward(a)
        return operators.relu(a)

    @staticmethod
    def backward(ctx: Context, d_output: float) -> float:
        (a,) = ctx.saved_values
        return operators.relu_back(a, d_output)


class LT(ScalarFunction):
    """1.0 if x < y, else 0.0: constant wherever it has a derivative"""

    @staticmethod
    def forward(ctx: Context, a: float, b: float) -> float:
        return operators.lt(a, b)

    @staticmethod
    def backward(ctx: Context, d_output: float) -> tuple[float, float]:
        return 0.0, 0.0


class EQ(ScalarFunction):
    """1.0 if x = y, else 0.0: constant wherever it has a derivative"""

    @staticmethod
    def forward(ctx: Context, a: float, b: float) -> float:
        return operators.eq(a, b)

    @staticmethod
    def backward(ctx: Context, d_output: float) -> tuple[float, float]:
        return 0.0, 0.0


class NE(ScalarFunction):
    """0.0 if x = y, else 1.0: constant wherever it has a derivative"""

    @staticmethod
    def forward(ctx: Context, a: float, b: float) -> float:
        return 1.0 - operators.eq(a, b)

    @staticmethod
    def backward(ctx: Context, d_output: float) -> tuple[float, float]:
        return 0.0, 0.0


# Scalar stands on these functions, so they find it in its module, which is imported last.
from tensorsmith.minitorch import scalar  # noqa: E402
