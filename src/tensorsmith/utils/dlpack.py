"""`ts.utils.dlpack`: PyTorch's address of `from_dlpack` and `to_dlpack`."""

from tensorsmith.ops.exchange import from_dlpack, to_dlpack

__all__ = ["from_dlpack", "to_dlpack"]
