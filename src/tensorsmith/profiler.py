"""PyTorch's address of the profiler: `ts.profiler.profile()`, see `runtime/profiler.py`."""

from tensorsmith.runtime.profiler import profile, record_function
from tensorsmith.runtime.profiler_schedule import (
    ProfilerAction,
    ProfilerActivity,
    schedule,
    supported_activities,
    tensorboard_trace_handler,
)

__all__ = [
    "ProfilerAction",
    "ProfilerActivity",
    "profile",
    "record_function",
    "schedule",
    "supported_activities",
    "tensorboard_trace_handler",
]
