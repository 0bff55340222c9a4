"""PyTorch's addresses under `utils`, for programs written for them; what stands there lives in other rooms."""

from tensorsmith.utils import checkpoint, data, dlpack

__all__ = ["checkpoint", "data", "dlpack"]
