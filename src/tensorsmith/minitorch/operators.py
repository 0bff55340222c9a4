"""MiniTorch's scalar functions and its map, zipWith and reduce on lists (module 0).

Plain Python on numbers. The same functions are lifted to kernels by `TensorBackend`, so a comparison gives 1.0 or 0.0,
not a bool, and branches stay branches.

Two of MiniTorch's habits are kept here and nowhere else: `log` adds 1e-6 to its argument (so `log(0)` is a number), and
`is_close` compares absolutely, within 0.01.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

EPS = 1e-6

# ------------------------------------------------------------------------------------------------ elementary functions


def mul(x: float, y: float) -> float:
    """x y"""
    return x * y


def id(x: float) -> float:
    """x"""
    return x


def add(x: float, y: float) -> float:
    """x + y"""
    return x + y


def neg(x: float) -> float:
    """-x"""
    return -x


def lt(x: float, y: float) -> float:
    """1.0 if x < y, else 0.0"""
    return 1.0 if x < y else 0.0


def eq(x: float, y: float) -> float:
    """1.0 if x = y, else 0.0"""
    return 1.0 if x == y else 0.0


def max(x: float, y: float) -> float:
    """The larger of x and y"""
    return x if x > y else y


def is_close(x: float, y: float) -> float:
    """1.0 if |x - y| < 0.01, else 0.0: an absolute bound, as in MiniTorch"""
    return 1.0 if -1e-2 < x - y < 1e-2 else 0.0


def sigmoid(x: float) -> float:
    """1 / (1 + exp(-x)), computed on the side where exp cannot overflow"""
    if x >= 0:
        return 1.0 / (1.0 + math.exp(-x))
    return math.exp(x) / (1.0 + math.exp(x))


def relu(x: float) -> float:
    """x if x > 0, else 0.0"""
    return x if x > 0 else 0.0


def log(x: float) -> float:
    """log(x + 1e-6): MiniTorch's logarithm, defined at 0"""
    return math.log(x + EPS)


def exp(x: float) -> float:
    """e^x"""
    return math.exp(x)


def inv(x: float) -> float:
    """1 / x"""
    return 1.0 / x


# Derivatives times the gradient d of what follows.


def log_back(x: float, d: float) -> float:
    """d log'(x) = d / (x + 1e-6)"""
    return d / (x + EPS)


def inv_back(x: float, d: float) -> float:
    """d inv'(x) = -d / x^2"""
    return -d / (x * x)


def relu_back(x: float, d: float) -> float:
    """d relu'(x) = d if x > 0, else 0.0"""
    return d if x > 0 else 0.0


def sigmoid_back(s: float, d: float) -> float:
    """d sigmoid'(x) = d s (1 - s), from s = sigmoid(x)"""
    return d * s * (1.0 - s)


# ----------------------------------------------------------------------------------------------------- on whole lists


def map(fn: Callable[[float], float]) -> Callable[[Iterable[float]], list[float]]:
    """A function of a list that applies `fn` to every element."""

    def mapped(ls: Iterable[float]) -> list[float]:
        return [fn(x) for x in ls]

    return mapped


def zipWith(fn: Callable[[float, float], float]) -> Callable[[Iterable[float], Iterable[float]], list[float]]:
    """A function of two lists that applies `fn` to every pair; the shorter list ends it."""

    def zipped(ls1: Iterable[float], ls2: Iterable[float]) -> list[float]:
        return [fn(x, y) for x, y in zip(ls1, ls2)]

    return zipped


def reduce(fn: Callable[[float, float], float], start: float) -> Callable[[Iterable[float]], float]:
    """A function of a list x1 .. xn: fn(xn, ... fn(x2, fn(x1, start)))"""

    def reduced(ls: Iterable[float]) -> float:
        out = start
        for x in ls:
            out = fn(x, out)
        return out

    return reduced


def negList(ls: Iterable[float]) -> list[float]:
    """-x for every x of the list"""
    return map(neg)(ls)


def addLists(ls1: Iterable[float], ls2: Iterable[float]) -> list[float]:
    """x + y for every pair of the two lists"""
    return zipWith(add)(ls1, ls2)


def sum(ls: Iterable[float]) -> float:
    """The sum of a list, 0.0 of an empty one"""
    return reduce(add, 0.0)(ls)


def prod(ls: Iterable[float]) -> float:
    """The product of a list, 1.0 of an empty one"""
    return reduce(mul, 1.0)(ls)
