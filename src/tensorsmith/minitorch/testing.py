"""The functions that the course's tests run on floats, Scalars and Tensors alike.

`MathTest` works on numbers by `operators`, `MathTestVariable` on variables by their methods; a name that ends in `2`
takes two arguments, one that ends in `red` reduces.
"""

from __future__ import annotations

from typing import Any

from tensorsmith.minitorch import operators


class MathTest:
    """On numbers, or on lists of numbers for reductions."""

    @staticmethod
    def neg(a: Any) -> Any:
        """-a"""
        return -a

    @staticmethod
    def addConstant(a: Any) -> Any:
        """5 + a"""
        return 5 + a

    @staticmethod
    def square(a: Any) -> Any:
        """a^2"""
        return a * a

    @staticmethod
    def cube(a: Any) -> Any:
        """a^3"""
        return a * a * a

    @staticmethod
    def subConstant(a: Any) -> Any:
        """a - 5"""
        return a - 5

    @staticmethod
    def multConstant(a: Any) -> Any:
        """5 a"""
        return 5 * a

    @staticmethod
    def div(a: Any) -> Any:
        """a / 5"""
        return a / 5

    @staticmethod
    def inv(a: Any) -> Any:
        """1 / (a + 3.5)"""
        return operators.inv(a + 3.5)

    @staticmethod
    def sig(a: Any) -> Any:
        """sigmoid(a)"""
        return operators.sigmoid(a)

    @staticmethod
    def log(a: Any) -> Any:
        """log(a + 100000)"""
        return operators.log(a + 100000)

    @staticmethod
    def relu(a: Any) -> Any:
        """relu(a + 5.5)"""
        return operators.relu(a + 5.5)

    @staticmethod
    def exp(a: Any) -> Any:
        """exp(a - 200)"""
        return operators.exp(a - 200)

    @staticmethod
    def explog(a: Any) -> Any:
        """log(a + 100000) + exp(a - 200)"""
        return operators.log(a + 100000) + operators.exp(a - 200)

    @staticmethod
    def add2(a: Any, b: Any) -> Any:
        """a + b"""
        return a + b

    @staticmethod
    def mul2(a: Any, b: Any) -> Any:
        """a b"""
        return a * b

    @staticmethod
    def div2(a: Any, b: Any) -> Any:
        """a / (b + 5.5)"""
        return a / (b + 5.5)

    @staticmethod
    def gt2(a: Any, b: Any) -> Any:
        """a + 1.2 > b"""
        return operators.lt(b, a + 1.2)

    @staticmethod
    def lt2(a: Any, b: Any) -> Any:
        """a + 1.2 < b"""
        return operators.lt(a + 1.2, b)

    @staticmethod
    def eq2(a: Any, b: Any) -> Any:
        """a = b + 5.5"""
        return operators.eq(a, b + 5.5)

    @staticmethod
    def sum_red(a: Any) -> Any:
        """The sum over the first dimension"""
        return operators.sum(a)

    @staticmethod
    def mean_red(a: Any) -> Any:
        """The mean over the first dimension"""
        return operators.sum(a) / float(len(a))

    @staticmethod
    def mean_full_red(a: Any) -> Any:
        """The mean over everything"""
        return operators.sum(a) / float(len(a))

    @staticmethod
    def complex(a: Any) -> Any:
        """log(sigmoid(10 relu(6 relu(10 a + 7) + 5))) / 50"""
        inside = operators.relu(operators.relu(a * 10 + 7) * 6 + 5) * 10
        return operators.log(operators.sigmoid(inside)) / 50

    @classmethod
    def _tests(cls) -> tuple[list[Any], list[Any], list[Any]]:
        """(name, function) of one argument, of two, and of reductions, in the order of the names."""
        one: list[Any] = []
        two: list[Any] = []
        reductions: list[Any] = []
        for name in dir(MathTest):
            if not name.startswith("_"):
                kind = two if name.endswith("2") else reductions if name.endswith("red") else one
                kind.append((name, getattr(cls, name)))
        return one, two, reductions

    @classmethod
    def _comp_testing(cls) -> tuple[list[Any], list[Any], list[Any]]:
        """(name, function on numbers, this class's function) of the three kinds."""
        kinds = [
            [(name, number, function) for (name, function), (_, number) in zip(ours, numbers)]
            for ours, numbers in zip(cls._tests(), MathTest._tests())
        ]
        return kinds[0], kinds[1], kinds[2]


class MathTestVariable(MathTest):
    """The same on Scalars or Tensors."""

    @staticmethod
    def inv(a: Any) -> Any:
        return 1.0 / (a + 3.5)

    @staticmethod
    def sig(a: Any) -> Any:
        return a.sigmoid()

    @staticmethod
    def log(a: Any) -> Any:
        return (a + 100000).log()

    @staticmethod
    def relu(a: Any) -> Any:
        return (a + 5.5).relu()

    @staticmethod
    def exp(a: Any) -> Any:
        return (a - 200).exp()

    @staticmethod
    def explog(a: Any) -> Any:
        return (a + 100000).log() + (a - 200).exp()

    @staticmethod
    def gt2(a: Any, b: Any) -> Any:
        return a + 1.2 > b

    @staticmethod
    def lt2(a: Any, b: Any) -> Any:
        return a + 1.2 < b

    @staticmethod
    def eq2(a: Any, b: Any) -> Any:
        return a == (b + 5.5)

    @staticmethod
    def sum_red(a: Any) -> Any:
        return a.sum(0)

    @staticmethod
    def mean_red(a: Any) -> Any:
        return a.mean(0)

    @staticmethod
    def mean_full_red(a: Any) -> Any:
        return a.mean()

    @staticmethod
    def complex(a: Any) -> Any:
        return (((a * 10 + 7).relu() * 6 + 5).relu() * 10).sigmoid().log() / 50
