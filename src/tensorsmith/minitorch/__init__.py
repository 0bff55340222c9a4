"""The course layer: MiniTorch's API over this engine.

A program or a test-suite written for MiniTorch runs on it without a change:

    python -m tensorsmith.minitorch FILE ...        a program, with `import minitorch` meaning this package
    python -m tensorsmith.minitorch pytest ...      its tests

Modules 0 to 4 of the course are, in this order: `operators`, `module`; `autodiff`, `scalar_functions`, `scalar`;
`tensor_data`, `tensor_ops`, `tensor_functions`, `tensor`; `fast_ops`, `cuda_ops`; `fast_conv`, `nn`. What is kept of
MiniTorch's habits, and which of its faults are not copied, is in docs/course/differences.md.
"""

from tensorsmith.minitorch import operators as operators, scalar_functions as scalar_functions
from tensorsmith.minitorch.autodiff import (
    Context as Context,
    Variable as Variable,
    backpropagate as backpropagate,
    central_difference as central_difference,
    topological_sort as topological_sort,
)
from tensorsmith.minitorch.cuda_ops import CudaOps as CudaOps, mm_practice as mm_practice, sum_practice as sum_practice
from tensorsmith.minitorch.datasets import datasets as datasets  # the dictionary, over the module's name
from tensorsmith.minitorch.fast_conv import (
    Conv1dFun as Conv1dFun,
    Conv2dFun as Conv2dFun,
    conv1d as conv1d,
    conv2d as conv2d,
    tensor_conv1d as tensor_conv1d,
    tensor_conv2d as tensor_conv2d,
)
from tensorsmith.minitorch.fast_ops import FastOps as FastOps, tensor_matrix_multiply as tensor_matrix_multiply
from tensorsmith.minitorch.gradient_check import (
    grad_central_difference as grad_central_difference,
    grad_check as grad_check,
)
from tensorsmith.minitorch.module import Module as Module, Parameter as Parameter
from tensorsmith.minitorch.nn import (
    Max as Max,
    argmax as argmax,
    avgpool2d as avgpool2d,
    dropout as dropout,
    logsoftmax as logsoftmax,
    max as max,
    max_reduce as max_reduce,
    maxpool2d as maxpool2d,
    softmax as softmax,
    tile as tile,
)
from tensorsmith.minitorch.operators import prod as prod
from tensorsmith.minitorch.optim import SGD as SGD, Optimizer as Optimizer
from tensorsmith.minitorch.scalar import Scalar as Scalar, ScalarHistory as ScalarHistory, derivative_check as derivative_check
from tensorsmith.minitorch.scalar_functions import ScalarFunction as ScalarFunction
from tensorsmith.minitorch.tensor import History as History, Tensor as Tensor
from tensorsmith.minitorch.tensor_data import (
    MAX_DIMS as MAX_DIMS,
    Index as Index,
    IndexingError as IndexingError,
    OutIndex as OutIndex,
    Shape as Shape,
    Storage as Storage,
    Strides as Strides,
    TensorData as TensorData,
    UserIndex as UserIndex,
    UserShape as UserShape,
    UserStrides as UserStrides,
    broadcast_index as broadcast_index,
    index_to_position as index_to_position,
    shape_broadcast as shape_broadcast,
    strides_from_shape as strides_from_shape,
    to_index as to_index,
)
from tensorsmith.minitorch.tensor_functions import (
    Function as Function,
    rand as rand,
    tensor as tensor_from_lists,
    zeros as zeros,
)
from tensorsmith.minitorch.tensor_ops import (
    MapProto as MapProto,
    SimpleBackend as SimpleBackend,
    SimpleOps as SimpleOps,
    TensorBackend as TensorBackend,
    TensorOps as TensorOps,
    tensor_map as tensor_map,
    tensor_reduce as tensor_reduce,
    tensor_zip as tensor_zip,
)
from tensorsmith.minitorch.testing import MathTest as MathTest, MathTestVariable as MathTestVariable

tensor = tensor_from_lists  # the function, over the module's name
version = "0.4"  # of the API that this is
