"""A network of tensors learns a set of points, on kernels compiled for this machine (module 3).

    python -m tensorsmith.minitorch examples/minitorch/fast_tensor.py --dataset Spiral --hidden 100 --points 200

The program of `tensor.py` with another backend: `FastOps` makes one vectorised kernel of every function.
"""

import minitorch
from points import run
from training import add_points, parser

if __name__ == "__main__":
    arguments = parser(__doc__, epochs=200)
    add_points(arguments, points=50, hidden=100, learning_rate=0.1)
    run(arguments, minitorch.TensorBackend(minitorch.FastOps))
