"""Scalars that remember how they were made: one table gives values, derivatives and kernels.

    python examples/scalar_autodiff.py
"""

import tensorsmith as ts
from tensorsmith.scalar import Dual, Scalar, derivative, exp, lift, sigmoid, sin


def f(x, y):
    """Any Python function of numbers: operators, branches, functions of the table."""
    return x * sigmoid(y) if x > 0 else exp(x) + sin(y)


# Backwards: values that record what is done with them.
x, y = Scalar(2.0), Scalar(-1.0)
z = f(x, y)
z.backward()
print(f"f(2, -1) = {z.value:.6f}   df/dx = {x.grad:.6f}   df/dy = {y.grad:.6f}")

# Forwards, from the same table: a value with its tangent.
forwards = f(Dual(2.0, 1.0), -1.0)
print(f"forwards:   df/dx = {forwards.tangent:.6f}")

# As an expression: both branches, and its derivative, again an expression.
expression = lift(f)
print("f     =", expression)
print("df/dx =", derivative(expression, 0))

# On tensors: the same function as one compiled kernel, with its gradient.
g = ts.elementwise(f)
values = ts.tensor([2.0, -0.5, 1.0], requires_grad=True)
g(values, ts.tensor(-1.0)).sum().backward()
print("on a tensor: df/dx =", values.grad)
