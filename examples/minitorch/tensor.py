"""A network of tensors learns a set of points, on the reference backend (module 2).

    python -m tensorsmith.minitorch examples/minitorch/tensor.py --dataset Split --epochs 200

`SimpleOps` evaluates every map, zip and reduce in NumPy, one function after the other.
"""

import minitorch
from points import run
from training import add_points, parser

if __name__ == "__main__":
    arguments = parser(__doc__, epochs=200)
    add_points(arguments, points=50, hidden=8, learning_rate=0.5)
    run(arguments, minitorch.TensorBackend(minitorch.SimpleOps))
