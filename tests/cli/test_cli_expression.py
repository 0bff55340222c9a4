"""Expressions as text: what is read, what is refused, and that nothing is evaluated by Python."""

from __future__ import annotations

import math

import pytest

from tensorsmith.cli.errors import UsageError
from tensorsmith.cli.expression import parse
from tensorsmith.scalar import evaluate


def value(text: str, *numbers: float) -> float:
    """The value of a scalar expression of Python numbers."""
    parsed = parse(text)
    assert parsed.expression is not None
    return float(evaluate(parsed.expression, numbers))


@pytest.mark.parametrize(
    ("text", "numbers", "expected"),
    [
        ("x * sigmoid(x)", (2.0,), 2 / (1 + math.exp(-2))),
        ("a if x > 0 else a * (exp(x) - 1)", (-1.0, 3.0), 3 * math.expm1(-1)),
        ("a if x > 0 else a * (exp(x) - 1)", (1.0, 3.0), 3.0),
        ("0 < x < 1", (0.5,), 1.0),
        ("0 < x < 1", (1.5,), 0.0),
        ("1 if x > 0 and not x > 2 or x == -5 else 0", (-5.0,), 1.0),
        ("max(x, 0) + min(x, 0) + abs(x)", (-3.0,), 0.0),
        ("math.exp(-x ** 2 / 2) / (2 * pi) ** 0.5", (1.0,), math.exp(-0.5) / math.sqrt(2 * math.pi)),
        ("lambda y, x: y - 2 * x", (1.0, 5.0), -9.0),
        ("gelu(x, approximate='tanh')", (1.0,), 0.8411919906082768),
        ("clamp(x, min=-1, max=1)", (4.0,), 1.0),
        ("silu", (2.0,), 2 / (1 + math.exp(-2))),
        ("hypot", (3.0, 4.0), 5.0),
    ],
)
def test_scalar_expressions_mean_what_python_means(text, numbers, expected):
    assert value(text, *numbers) == pytest.approx(expected, rel=1e-12)


def test_variables_are_named_in_order_of_appearance():
    assert parse("w * tanh(u) - w / v").names == ("w", "u", "v")
    assert parse("lambda q, p: p").names == ("q", "p")


@pytest.mark.parametrize(
    "text",
    ["softmax(x, dim=-1)", "x @ y", "sum(x, dim=0)", "x.sum(0)", "x.T + 1", "x[:, 1:3] * 2", "x.t().contiguous()"],
)
def test_tensor_expressions_are_told_apart(text):
    parsed = parse(text)
    assert parsed.expression is None and parsed.function is not None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__import__('os').system('true')", "not an operator"),
        ("x.__class__.__mro__", "not allowed"),
        ("open('f')", "no function 'open'"),
        ("eval('x')", "no function 'eval'"),
        ("[i for i in x]", "not allowed"),
        ("(y := x)", "not allowed"),
        ("f'{x}'", "not allowed"),
        ("x.tofile('f')", "not an operator"),
        ("sigmod(x)", "sigmoid"),
        ("x +", "cannot read"),
        ("x\0", "cannot read"),
        ("3 + 4", "no variable"),
        ("sin(x, x)", "sin"),
        ("softmax(x, dim=9 ** 9 ** 9)", "exponent"),
        ("(" * 900 + "x" + ")" * 900, "cannot read"),
        ("-" * 3000 + "x", ""),
        ("x" * 5000, "characters"),
    ],
)
def test_everything_else_is_refused_in_one_message(text, message):
    with pytest.raises(UsageError, match="(?s).*" + message):
        parsed = parse(text)
        if parsed.function is not None:
            from tensorsmith.ops.creation import ones

            parsed.function(*(ones(3, 3) for _ in parsed.names))


def test_large_integer_powers_build_an_expression_and_compute_nothing():
    assert parse("x * 9 ** 9 ** 9 ** 9").expression is not None
