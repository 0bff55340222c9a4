"""`torch.compile(model, backend="tensorsmith")`: PyTorch's graphs, forward and backward, run on compiled plans of ours.

    import torch
    model = torch.compile(torch.nn.Linear(8, 4), backend="tensorsmith")

PyTorch traces the function and differentiates it (TorchDynamo, AOTAutograd); graphs of ATen operators come here. A graph is
run once with tensors without memory (`compile/tracer.py`), through a table of what each ATen operator is here
(`table.py`), and becomes one plan (`program.py`). A plan reads and writes PyTorch's memory by address: nothing is copied
on the way in or out. Operators that the table has not, and tensors that are not dense on the CPU, stay in PyTorch
(`partition.py`), which a warning says once; `left_to_torch()` lists them.

The name is known without an import, by the entry point `torch_dynamo_backends` (`interop/entry.py`); importing this module
registers it too.
Threads are those of `tensorsmith.set_num_threads`.
"""

from tensorsmith.interop.torch.backend import tensorsmith_backend
from tensorsmith.interop.torch.partition import TensorsmithWarning, left_to_torch

__all__ = ["TensorsmithWarning", "left_to_torch", "tensorsmith_backend"]
