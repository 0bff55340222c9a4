"""PyTorch's address of the profiler: `ts.profiler.profile()`, see `runtime/profiler.py`."""

from tensorsmith.runtime.profiler import profile, record_function

__all__ = ["profile", "record_function"]
