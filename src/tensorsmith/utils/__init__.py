"""PyTorch's addresses under `utils`, for programs written for them; what stands there lives in other rooms."""

from tensorsmith.utils import checkpoint, data

__all__ = ["checkpoint", "data"]
