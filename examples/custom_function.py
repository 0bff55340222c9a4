"""A new operator from one Python function: eager, differentiable twice, compiled, and readable at every level.

    python examples/custom_function.py
"""

import tensorsmith as ts


@ts.elementwise
def squareplus(x, b):
    """(x + sqrt(x^2 + b)) / 2, a smooth relu."""
    return (x + ts.scalar.sqrt(x * x + b)) / 2


x = ts.linspace(-3.0, 3.0, 7, dtype=ts.float64, requires_grad=True)
b = ts.tensor(4.0, dtype=ts.float64)

y = squareplus(x, b)
print("value      ", y)

(slope,) = ts.autograd.grad(y.sum(), x, create_graph=True)
print("slope      ", slope)

(curvature,) = ts.autograd.grad(slope.sum(), x)
print("curvature  ", curvature)

# Gradients are right: finite differences say so, for the first and the second.
print("gradcheck  ", ts.autograd.gradcheck(squareplus, (x, b)), ts.autograd.gradgradcheck(squareplus, (x, b)))

# Inside a compiled function it is fused with its neighbours.
fused = ts.compile(lambda x: squareplus(x * 2 + 1, b).exp())
print("compiled   ", fused(x.detach()))

print()
print(ts.explain(squareplus, x.detach(), b).text(["scalar", "kernel", "loops"]))
