"""Lifting plain Python functions: branches, math, closures, helpers, limits, and errors at the user's line."""

import functools
import inspect
import math
import subprocess
import sys
from math import exp as imported_exp

import numpy
import pytest

from tensorsmith import scalar
from tensorsmith.scalar import LiftError, derivative, evaluate, lift

GRID = [-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 7.5]


def assert_lifts(function, grid=GRID, arity=None):
    expr = lift(function, arity)
    for x in grid:
        assert evaluate(expr, [x]) == pytest.approx(function(x), rel=1e-15), x
    return expr


def line_of(function, text):
    """The number of the line of a function that contains the text."""
    lines, first = inspect.getsourcelines(function)
    return next(first + offset for offset, line in enumerate(lines) if text in line)


def assert_error_at(function, text, message, arity=None):
    with pytest.raises(LiftError, match=message) as caught:
        lift(function, arity)
    assert caught.value.filename == __file__
    assert caught.value.lineno == line_of(function, text)
    assert f"{__file__}:{caught.value.lineno}" in str(caught.value)
    assert text in str(caught.value)
    assert isinstance(caught.value, TypeError)


# ------------------------------------------------------------------------------------------------------- what lifts


def branchy(x):
    if x > 1:
        y = x * x
    elif x > -1:
        y = -x if x < 0 else x + 1
    else:
        y = 3
    return y + 1


def test_branches():
    expr = assert_lifts(branchy)
    once = derivative(expr, 0)
    assert [evaluate(once, [x]) for x in (2.0, 0.5, -0.5, -2.0)] == [4.0, 1.0, -1.0, 0.0]


def test_boolean_operators_and_chains():
    assert_lifts(lambda x: 1.0 if 0 < x < 2 or x == 7.5 else -x)
    assert_lifts(lambda x: 1.0 if not (x > 0 and x < 2) else 0.0)
    assert_lifts(lambda x: 1.0 if x else 2.0)
    assert_lifts(lambda x: 1.0 if x in (0.5, 2.0) else 2.0)


def test_the_same_question_is_asked_once():
    def repeated(x):
        total = 0.0
        for _ in range(100):
            total = total + (x if x > 0 else 1.0)
        return total

    assert_lifts(repeated)


def test_builtins():
    assert_lifts(lambda x: max(x, 1.0) + min(x, 0.25, -x) + abs(x) + round(x) + pow(x, 2) + sum([x, x]))
    assert_lifts(lambda x: x // 2 + x % 3 + divmod(x, 2)[1])


def test_math_as_a_global_and_by_name():
    assert_lifts(lambda x: math.exp(x) * math.sin(x) + math.floor(x) + math.fabs(x) + math.pi)
    assert_lifts(lambda x: imported_exp(x))
    assert_lifts(lambda x: math.log(x * x + 1, 2) + math.hypot(x, 1.0, 2.0) + math.degrees(x) + math.radians(x))
    assert_lifts(math.tanh)
    assert lift(math.exp, 1) is scalar.exp(scalar.variable(0))


def test_math_imported_inside_and_in_closures():
    def imports(x):
        import math as m
        from math import cos

        return cos(x) + m.exp(x)

    assert_lifts(imports)
    local_math, local_function = math, math.sqrt

    def closes(x):
        return local_math.exp(x) + local_function(x * x)

    assert_lifts(closes)


def helper(x):
    return math.cosh(x) if x > 0 else recursive(x, 3)


def recursive(x, depth):
    return x if depth == 0 else math.sin(recursive(x, depth - 1))


def test_helpers_and_recursion():
    assert_lifts(lambda x: helper(x) + recursive(x, 2))


def test_math_itself_is_left_alone():
    lift(lambda x: math.exp(x))
    assert math.exp is imported_exp and type(math.exp(1.0)) is float


def test_methods_partials_and_callable_objects():
    class Affine:
        def __init__(self, slope):
            self.slope = slope

        def of(self, x):
            return math.exp(x) * self.slope

        def __call__(self, x):
            return math.sin(x) * self.slope

    assert_lifts(Affine(2.0).of)
    assert_lifts(Affine(2.0), arity=1)
    assert_lifts(Affine(2.0))
    assert_lifts(functools.partial(lambda slope, x: slope * math.exp(x), 3.0))


def test_outside_values_are_read_at_lifting():
    slope = 2.0

    def line(x, offset=1.0, *, scale=1.0):
        return (slope * x + offset) * scale

    first = lift(line)
    assert evaluate(first, [3.0]) == 7.0
    slope = 5.0
    second = lift(line)
    assert evaluate(first, [3.0]) == 7.0 and evaluate(second, [3.0]) == 16.0
    assert first is not second
    slope = 2.0
    assert lift(line) is first
    assert evaluate(lift(line, arity=2), [3.0, 0.0]) == 6.0


def test_numpy_constants_and_constant_functions():
    factor = numpy.float32(0.5)
    assert evaluate(lift(lambda x: factor * x + numpy.int64(2)), [3.0]) == 3.5
    assert lift(lambda x: 2) is scalar.constant(2)
    assert lift(lambda x: numpy.float32(0.5)) is scalar.constant(0.5)
    assert lift(lambda x: x > 0) is scalar.gt(scalar.variable(0), 0)


def test_many_inputs():
    expr = lift(lambda x, y, z: x * y if z > 0 else y)
    assert evaluate(expr, [2.0, 3.0, 1.0]) == 6.0 and evaluate(expr, [2.0, 3.0, -1.0]) == 3.0
    assert evaluate(lift(lambda *xs: sum(xs), arity=3), [1.0, 2.0, 3.0]) == 6.0


def staircase(steps):
    def climb(x):
        height = 0.0
        for step in range(steps):
            if x <= step:
                return height
            height = height + math.sqrt(x) * step
        return height

    return climb


def test_sixty_four_paths_are_lifted_and_the_sixty_fifth_is_an_error():
    expr = lift(staircase(63))
    assert evaluate(expr, [10.5]) == pytest.approx(staircase(63)(10.5))
    with pytest.raises(LiftError, match="more than 64 paths") as caught:
        lift(staircase(64))
    assert caught.value.filename == __file__ and caught.value.lineno == line_of(staircase, "if x <= step")


def test_independent_branches_multiply():
    def bits(x):
        return sum([1.0 if x > bound else 0.5 for bound in (0, 1, 2, 3, 4, 5)])

    assert_lifts(bits)

    def too_many(x):
        total = 0.0
        for k in range(7):
            total = total + (1.0 if x * k > scalar.sin(x) else 0.5)
        return total

    assert_error_at(too_many, "if x * k", "more than 64 paths")


# -------------------------------------------------------------------------------------------------- what does not


def test_a_loop_on_a_traced_value():
    def newton(x):
        while x > 1:
            x = x / 2
        return x

    assert_error_at(newton, "while x > 1", "a loop on a traced value")


def test_calls_that_need_the_number():
    def ranges(x):
        return sum(i for i in range(x))

    assert_error_at(ranges, "range(x)", "index or in range")

    def indexes(x):
        return [1.0, 2.0][x]

    assert_error_at(indexes, "[1.0, 2.0][x]", "index")

    def truncates(x):
        return int(x)

    assert_error_at(truncates, "int(x)", "use scalar.trunc")

    def floats(x):
        y = x + 1
        return float(y)

    assert_error_at(floats, "float(y)", r"use math\.\* or scalar.exp")

    def looks_up(x):
        return {1: 2.0}[x]

    assert_error_at(looks_up, "{1: 2.0}[x]", "set or dictionary")

    def iterates(x):
        return sum(v for v in x)

    assert_error_at(iterates, "for v in x", "iterating")

    def unknown_math(x):
        return math.gamma(x)

    assert_error_at(unknown_math, "math.gamma(x)", "math.gamma has no scalar function")


def test_unknown_calls_name_the_line_and_the_cause():
    def numpy_call(x):
        y = x * 2
        return numpy.exp(y)

    assert_error_at(numpy_call, "numpy.exp(y)", "functions of scalar")

    def attribute(x):
        return x.item()

    assert_error_at(attribute, "x.item()", "AttributeError")

    def raises(x):
        if x < 0:
            raise ValueError("negative")
        return x

    assert_error_at(raises, "raise ValueError", "ValueError: negative; a lifted function takes every path")


def test_results_that_are_no_number():
    def forgets(x):
        x * 2

    with pytest.raises(LiftError, match=r"forgets: must return one number on every path, got NoneType.*return missing"):
        lift(forgets)

    def pairs(x):
        return x, x

    with pytest.raises(LiftError, match="got tuple"):
        lift(pairs)


def test_parameters_that_cannot_be_counted():
    with pytest.raises(LiftError, match=r"takes \*xs; pass lift\(function, arity=...\)"):
        lift(lambda *xs: xs[0])
    with pytest.raises(LiftError, match="k is keyword-only and has no default"):
        lift(lambda x, *, k: x * k)


def test_importing_the_room_needs_only_the_standard_library():
    code = (
        "import sys; before = set(sys.modules); import tensorsmith.scalar.lift; "
        "new = {name.partition('.')[0] for name in set(sys.modules) - before} - {'tensorsmith'}; "
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    # Without the package's own __init__, which imports every room.
    root = scalar.__path__[0].rsplit("tensorsmith", 1)[0]
    stub = f"import sys, types; p = types.ModuleType('tensorsmith'); p.__path__ = [{root + 'tensorsmith'!r}]; "
    stub += "sys.modules['tensorsmith'] = p; "
    done = subprocess.run([sys.executable, "-S", "-c", stub + code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
