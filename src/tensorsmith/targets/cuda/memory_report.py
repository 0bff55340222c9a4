"""What the allocator of device memory has taken, in PyTorch's terms."""

from __future__ import annotations

from tensorsmith.targets.cuda import allocator, driver_memory
from tensorsmith.targets.cuda.allocator import State, readable, small_in_use


def allocated(index: int) -> int:
    """Bytes in use by tensors, by the sizes of their blocks."""
    state = allocator.state_of(index)
    return state.carved + state.own - sum(size * number for size, number in allocator.idle(state).items())


def reserved(index: int) -> int:
    """Bytes taken from the driver."""
    state = allocator.state_of(index)
    return state.own + state.slabs


def most_allocated(index: int) -> int:
    """The most bytes in use since the last reset.

    Large blocks are counted as they come and go; blocks up to 256 KB whenever new ones are made.
    """
    state = allocator.state_of(index)
    _sample(state)
    return state.peak_in_use + state.peak_small


def most_reserved(index: int) -> int:
    """The most bytes taken from the driver since the last reset."""
    state = allocator.state_of(index)
    return max(state.peak_reserved, reserved(index))


def reset_peaks(index: int) -> None:
    """Let the peaks start again from what is used now."""
    state = allocator.state_of(index)
    with state.lock:
        state.peak_small = small_in_use(state)
        # Counting is not locked against other threads: what is known exactly replaces it.
        state.peak_in_use = state.in_use = allocated(index) - state.peak_small
        state.peak_reserved = reserved(index)


def statistics(index: int) -> dict[str, int]:
    """Counts and bytes under PyTorch's names, as far as they mean something here, sorted by name."""
    state = allocator.state_of(index)
    now, taken = allocated(index), reserved(index)
    lying = allocator.idle(state)
    return dict(
        sorted(
            {
                "allocated_bytes.all.current": now,
                "allocated_bytes.all.peak": most_allocated(index),
                "allocated_bytes.small_pool.current": small_in_use(state),
                "allocated_bytes.large_pool.current": now - small_in_use(state),
                "reserved_bytes.all.current": taken,
                "reserved_bytes.all.peak": most_reserved(index),
                "inactive_bytes.all.current": taken - now,
                "largest_idle_block": max((size for size, number in lying.items() if number), default=0),
                "num_alloc_retries": state.retries,
                "num_device_alloc": state.allocations,
                "num_ooms": state.failures,
            }.items()
        )
    )


def summary(index: int) -> str:
    """A table for people."""
    state = allocator.state_of(index)
    free, total = driver_memory.information(index)
    found = statistics(index)
    rows = [
        ("in use by tensors", found["allocated_bytes.all.current"], found["allocated_bytes.all.peak"]),
        ("taken from the driver", found["reserved_bytes.all.current"], found["reserved_bytes.all.peak"]),
        ("cached idle", found["inactive_bytes.all.current"], None),
        ("largest idle block", found["largest_idle_block"], None),
        ("free on the device", free, None),
        ("on the device", total, None),
    ]
    lines = [f"memory of cuda:{index}", f"{'':24}{'now':>14}{'peak':>14}"]
    lines += [f"{name:24}{readable(now):>14}{'' if peak is None else readable(peak):>14}" for name, now, peak in rows]
    lines.append(f"{state.allocations} blocks and slabs taken, {state.retries} retries, {state.failures} failures")
    return "\n".join(lines)


def _sample(state: State) -> None:
    state.peak_small = max(state.peak_small, small_in_use(state))
