"""CUDA devices as PyTorch's scripts ask for them: none, because tensors live on the CPU only so far."""


def is_available() -> bool:
    """Whether tensors can live on a CUDA device: not so far."""
    return False


def device_count() -> int:
    """How many CUDA devices tensors can live on."""
    return 0


__all__ = ["device_count", "is_available"]
