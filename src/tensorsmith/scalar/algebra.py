"""`apply`, which carries out a function of the table on anything, and Python's operators in terms of it.

An algebra is a class with a method `_apply_(fn, *args)`: Scalar (records a graph), Dual (carries a tangent), Expr
(builds an expression), an IR node. The formulas of this room are generic over algebras.
"""

import numbers
from typing import Any

from tensorsmith.scalar.complex_values import COMPLEX_VALUES
from tensorsmith.scalar.fn import Fn
from tensorsmith.scalar.values import VALUES, Number


def apply(fn: Fn, *args: Any) -> Any:
    """fn of the arguments: Python numbers, or any algebra that implements `_apply_`.

    An `_apply_` that does not know one of the operands returns NotImplemented, and the next argument is asked.
    Numbers of other libraries (numpy.float32(2), Fraction(1, 3)) are taken as the Python number they stand for.
    Raises TypeError when no argument can answer.
    """
    handlers = []
    for position, arg in enumerate(args):
        kind = type(arg)
        if kind is float or kind is int or kind is bool:
            continue
        handler = getattr(arg, "_apply_", None)
        if handler is not None:
            handlers.append(handler)
        elif isinstance(arg, numbers.Complex) and not isinstance(arg, numbers.Real):
            args = (*args[:position], complex(arg), *args[position + 1 :])
        else:
            args = (*args[:position], as_number(fn, arg), *args[position + 1 :])
    if not handlers:
        return COMPLEX_VALUES[fn](*args) if any(type(arg) is complex for arg in args) else VALUES[fn](*args)
    if any(type(arg) is complex for arg in args) and not all(handler.__self__.takes_complex for handler in handlers):
        raise TypeError(f"{fn.value}: a complex number cannot be mixed with {type(handlers[0].__self__).__name__}")
    for handler in handlers:
        result = handler(fn, *args)
        if result is not NotImplemented:
            return result
    kinds = ", ".join(type(arg).__name__ for arg in args)
    raise TypeError(f"{fn.value}: cannot mix the operands ({kinds}); use numbers and values of one kind")


def as_number(fn: Fn, arg: Any) -> Number:
    """The Python number that a number of another library stands for; TypeError for anything else."""
    if isinstance(arg, numbers.Integral):
        return int(arg)
    if isinstance(arg, numbers.Real):
        return float(arg)
    raise TypeError(f"{fn.value}: expected a number, got {type(arg).__name__}")


class Operators:
    """Mixin: Python's operators in terms of `apply`. Hashing stays by identity although == builds a comparison."""

    __slots__ = ()

    # NumPy's scalars then leave `numpy.float64(2) * x` to __rmul__ here.
    __array_ufunc__: Any = None

    __hash__ = object.__hash__

    takes_complex = False  # whether operands may be Python's complex numbers

    def _apply_(self, fn: Fn, *args: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not implement _apply_(fn, *args)")

    def __add__(self, other: Any) -> Any:
        return _binary(Fn.ADD, self, other)

    def __radd__(self, other: Any) -> Any:
        return _binary(Fn.ADD, other, self)

    def __sub__(self, other: Any) -> Any:
        return _binary(Fn.SUB, self, other)

    def __rsub__(self, other: Any) -> Any:
        return _binary(Fn.SUB, other, self)

    def __mul__(self, other: Any) -> Any:
        return _binary(Fn.MUL, self, other)

    def __rmul__(self, other: Any) -> Any:
        return _binary(Fn.MUL, other, self)

    def __truediv__(self, other: Any) -> Any:
        return _binary(Fn.DIV, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _binary(Fn.DIV, other, self)

    def __floordiv__(self, other: Any) -> Any:
        return _binary(Fn.FLOOR_DIVIDE, self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return _binary(Fn.FLOOR_DIVIDE, other, self)

    def __mod__(self, other: Any) -> Any:
        return _binary(Fn.REMAINDER, self, other)

    def __rmod__(self, other: Any) -> Any:
        return _binary(Fn.REMAINDER, other, self)

    def __pow__(self, other: Any) -> Any:
        return _binary(Fn.POW, self, other)

    def __rpow__(self, other: Any) -> Any:
        return _binary(Fn.POW, other, self)

    def __and__(self, other: Any) -> Any:
        return _binary(Fn.BITWISE_AND, self, other)

    def __rand__(self, other: Any) -> Any:
        return _binary(Fn.BITWISE_AND, other, self)

    def __or__(self, other: Any) -> Any:
        return _binary(Fn.BITWISE_OR, self, other)

    def __ror__(self, other: Any) -> Any:
        return _binary(Fn.BITWISE_OR, other, self)

    def __xor__(self, other: Any) -> Any:
        return _binary(Fn.BITWISE_XOR, self, other)

    def __rxor__(self, other: Any) -> Any:
        return _binary(Fn.BITWISE_XOR, other, self)

    def __lshift__(self, other: Any) -> Any:
        return _binary(Fn.LEFT_SHIFT, self, other)

    def __rlshift__(self, other: Any) -> Any:
        return _binary(Fn.LEFT_SHIFT, other, self)

    def __rshift__(self, other: Any) -> Any:
        return _binary(Fn.RIGHT_SHIFT, self, other)

    def __rrshift__(self, other: Any) -> Any:
        return _binary(Fn.RIGHT_SHIFT, other, self)

    def __neg__(self) -> Any:
        return apply(Fn.NEG, self)

    def __abs__(self) -> Any:
        return apply(Fn.ABS, self)

    def __invert__(self) -> Any:
        return apply(Fn.BITWISE_NOT, self)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __pos__(self) -> Any:
        return self

    def __lt__(self, other: Any) -> Any:
        return _binary(Fn.LT, self, other)

    def __le__(self, other: Any) -> Any:
        return _binary(Fn.LE, self, other)

    def __gt__(self, other: Any) -> Any:
        return _binary(Fn.GT, self, other)

    def __ge__(self, other: Any) -> Any:
        return _binary(Fn.GE, self, other)

    def __eq__(self, other: Any) -> Any:
        return _binary(Fn.EQ, self, other)

    def __ne__(self, other: Any) -> Any:
        return _binary(Fn.NE, self, other)


def _binary(fn: Fn, x: Any, y: Any) -> Any:
    """An operator of Python: NotImplemented for an operand that is no number and no algebra (None, a string)."""
    for operand in (x, y):
        if not isinstance(operand, (int, float, numbers.Complex)) and not hasattr(operand, "_apply_"):
            return NotImplemented
    return apply(fn, x, y)
