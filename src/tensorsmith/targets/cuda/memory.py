"""Device memory in one place: blocks of it (`allocator.py`), and copies to, from and within it (`copies.py`)."""

from tensorsmith.targets.cuda.allocator import (
    CurrentList,
    OutOfMemoryError,
    PrivatePool,
    allocate,
    current_list,
    empty_cache,
    free_list,
    private_pool,
    record_stream,
    release,
    size_class,
)
from tensorsmith.targets.cuda.copies import copy_on_device, copy_to_device, copy_to_host, fill_zero, synchronize
from tensorsmith.targets.cuda.driver_memory import set_allocator

__all__ = [
    "CurrentList",
    "OutOfMemoryError",
    "PrivatePool",
    "allocate",
    "copy_on_device",
    "copy_to_device",
    "copy_to_host",
    "current_list",
    "empty_cache",
    "fill_zero",
    "free_list",
    "private_pool",
    "record_stream",
    "release",
    "set_allocator",
    "size_class",
    "synchronize",
]
