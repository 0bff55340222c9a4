"""The emulated device itself: indices, barriers, shuffles, shared memory, faults."""

import os
import subprocess
import sys

import numpy as np
import pytest

from emulator.run import run_lowered
from tensorsmith.targets.cuda.kernel import Constant, ErrorWord, Launch, Lowered, Word


@pytest.fixture(autouse=True, scope="module")
def emulated():
    import emulator

    emulator.activate()


def run(body, arrays, *, parameters="", arguments=(), grid=(1, 1, 1), block=(32, 1, 1), shared=0, cluster=(1, 1, 1), before=""):
    """Run a kernel whose parameters are int* p0, p1, ... (or the types given) and return the error word."""
    types = {np.dtype(np.int32): "int", np.dtype(np.float32): "float", np.dtype(np.float64): "double", np.dtype(np.uint8):
             "unsigned char", np.dtype(np.int64): "long long", np.dtype(np.uint16): "unsigned short"}  # fmt: skip
    pointers = [f"{types[a.dtype]}* p{i}" for i, a in enumerate(arrays)] + ([parameters] if parameters else [])
    head = f'extern "C" __global__ void __launch_bounds__(1024) kernel_t({", ".join(pointers)}, long long* error)'
    source = f"{before}\n{head} {{\n{body}\n}}\n"
    words = tuple(Word(i) for i in range(len(arrays)))
    launch = Launch(source, "kernel_t", grid, block, (*words, *arguments, ErrorWord()), shared, cluster)
    return run_lowered(Lowered("t", (launch,), len(arrays)), arrays)


def test_indices():
    out = np.zeros((2, 3, 2, 4, 5, 6), np.int32)  # grid z, y, x, block z, y, x
    body = """
    long long at = blockIdx.z;
    at = at * gridDim.y + blockIdx.y;
    at = at * gridDim.x + blockIdx.x;
    at = at * blockDim.z + threadIdx.z;
    at = at * blockDim.y + threadIdx.y;
    at = at * blockDim.x + threadIdx.x;
    p0[at] = 100000 * blockIdx.z + 10000 * blockIdx.y + 1000 * blockIdx.x + 100 * threadIdx.z + 10 * threadIdx.y
        + threadIdx.x;"""
    assert run(body, [out], grid=(2, 3, 2), block=(6, 5, 4)) == 0
    indices = np.indices(out.shape)
    assert np.array_equal(out, sum(i * f for i, f in zip(indices, (100000, 10000, 1000, 100, 10, 1))))


def test_a_sum_over_a_block():
    x = np.arange(4 * 200, dtype=np.int32)
    out = np.zeros(4, np.int32)
    body = """
    __shared__ int partial[256], total;
    partial[threadIdx.x] = p0[blockIdx.x * blockDim.x + threadIdx.x];
    __syncthreads();
    for (int half = 128; half; half >>= 1) {
        if (threadIdx.x < half && threadIdx.x + half < blockDim.x) partial[threadIdx.x] += partial[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) total = partial[0];
    __syncthreads();
    if (threadIdx.x == blockDim.x - 1) p1[blockIdx.x] = total;"""
    assert run(body, [x, out], grid=(4, 1, 1), block=(200, 1, 1)) == 0
    assert out.tolist() == x.reshape(4, 200).sum(1).tolist()


def test_dynamic_shared_memory_and_its_declared_alignment():
    out = np.zeros(3, np.int32)
    body = """
    extern __shared__ __align__(128) unsigned char raw[];
    int* words = (int*)raw;
    words[threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) {
        p0[0] = words[blockDim.x - 1];
        p0[1] = __cvta_generic_to_shared(raw) % 128;
        p0[2] = __cvta_generic_to_shared(raw) % 1024;
    }"""
    assert run(body, [out], block=(64, 1, 1), shared=256) == 0
    assert out[0] == 63 and out[1] == 0 and out[2] != 0  # no better aligned than it says


@pytest.mark.parametrize("width", [32, 8])
def test_shuffles(width):
    given = np.arange(64, dtype=np.int32) * 3
    out = np.zeros((4, 64), np.int32)
    body = f"""
    const int i = threadIdx.x, v = p0[i];
    p1[i] = __shfl_sync(0xffffffffu, v, 5, {width});
    p1[64 + i] = __shfl_xor_sync(0xffffffffu, v, 3, {width});
    p1[128 + i] = __shfl_up_sync(0xffffffffu, v, 2, {width});
    p1[192 + i] = __shfl_down_sync(0xffffffffu, v, 2, {width});"""
    assert run(body, [given, out], block=(64, 1, 1)) == 0
    lane = np.arange(64)
    start = lane - lane % width
    up = np.where(lane - 2 < start, lane, lane - 2)
    down = np.where(lane + 2 >= start + width, lane, lane + 2)
    expected = [given[start + 5 % width], given[lane ^ 3], given[up], given[down]]
    assert np.array_equal(out, expected)


def test_votes_and_reductions_of_a_warp():
    out = np.zeros((6, 32), np.int32)
    body = """
    const int i = threadIdx.x;
    p0[i] = __ballot_sync(0xffffffffu, i % 3 == 0);
    p0[32 + i] = __any_sync(0xffffffffu, i == 7) + 2 * __all_sync(0xffffffffu, i < 32);
    p0[64 + i] = __match_any_sync(0xffffffffu, i / 8);
    p0[96 + i] = __reduce_add_sync(0xffffffffu, i);
    p0[128 + i] = __reduce_min_sync(0xffffffffu, 5 - i);
    if (i < 16) p0[160 + i] = __ballot_sync(0xffffu, i & 1);"""
    assert run(body, [out]) == 0
    assert set(out[0].view(np.uint32)) == {sum(1 << i for i in range(0, 32, 3))}
    assert set(out[1]) == {3}
    assert out[2].view(np.uint32).tolist() == [0xFF << (i // 8 * 8) for i in range(32)]
    assert set(out[3]) == {496} and set(out[4]) == {-26}
    assert set(out[5, :16]) == {0xAAAA}


def test_atomics_and_counted_barriers():
    out = np.zeros(4, np.int32)
    body = """
    atomicAdd(p0, (int)threadIdx.x);
    atomicMax(p0 + 1, (int)(threadIdx.x * 7 % 50));
    const int odd = __syncthreads_count(threadIdx.x & 1);
    if (threadIdx.x == 0) p0[2] = odd;
    const unsigned int before = atomicInc((unsigned int*)p0 + 3, gridDim.x * blockDim.x - 1);
    (void)before;"""
    assert run(body, [out], grid=(2, 1, 1), block=(50, 1, 1)) == 0
    assert out.tolist() == [2 * 1225, 49, 25, 0]


def test_a_thread_that_returned_is_not_waited_for():
    out = np.zeros(64, np.int32)
    body = """
    if (threadIdx.x >= 40) return;
    __syncthreads();
    p0[threadIdx.x] = __shfl_xor_sync(0xffffffffu, (int)threadIdx.x, 1);"""
    assert run(body, [out], block=(64, 1, 1)) == 0
    assert out[:40].tolist() == [i ^ 1 for i in range(40)]


def test_fresh_memory_is_not_zero():
    x = np.zeros(2, np.float32)
    body = """
    __shared__ float value;
    if (threadIdx.x == 0) p0[0] = value;
    __syncthreads();
    value = 1.0f;"""
    assert run(body, [x], grid=(2, 1, 1)) == 0
    assert np.isnan(x[0])


def test_arithmetic_is_not_contracted():
    x = np.array([1 + 2**-13, 1 + 2**-13, -1 - 2**-12, 9, 9], np.float32)
    assert run("if (threadIdx.x == 0) { p0[3] = p0[0] * p0[1] + p0[2]; p0[4] = __fmaf_rn(p0[0], p0[1], p0[2]); }", [x]) == 0
    assert x[3] == 0 and x[4] == 2**-26


def test_structs_and_numbers_as_arguments():
    out = np.zeros(3, np.float64)
    before = "struct Sizes { long long n, strides[2]; double scale; };"
    body = "if (threadIdx.x == 0) { p0[0] = sizes.n; p0[1] = sizes.strides[1] * sizes.scale; p0[2] = w; }"
    arguments = (Constant((5, -1, 7, 0.5)), Constant((2.25,)))
    assert run(body, [out], parameters="const Sizes sizes, double w", arguments=arguments, before=before) == 0
    assert out.tolist() == [5, 3.5, 2.25]


def test_the_error_word():
    assert run("if (threadIdx.x == 3) *error = -7;", [np.zeros(1, np.int32)]) == -7


@pytest.mark.parametrize(
    "body, message",
    [
        ("if (threadIdx.x < 7) __syncthreads(); else if (threadIdx.x < 9) __shfl_sync(0xfffu, 1, 0);", "deadlock"),
        ("if (threadIdx.x < 7) { __syncthreads(); }\nelse {\n__syncthreads(); }", "different __syncthreads"),
        ("__shfl_sync(0xffu, 1, 0);", "not in its own mask"),
        ("p0[1000000 + threadIdx.x] = 1;", "outside what is allocated"),
        ("*(int4*)(p0 + 1) = make_int4(1, 2, 3, 4);", "misaligned"),
        ("int a[4] = {1, 2, 3, 4}; p0[0] = a[p0[1] + 4];", "outside a local array"),
        ("p0[0] = 5 / p0[1];", "division by zero"),
        ("if (threadIdx.x == 9) __trap();", "thread 9"),
    ],
)
def test_faults_are_reported(body, message, capfd):
    with pytest.raises(RuntimeError, match="cuLaunchKernel"):
        run(body, [np.zeros(8, np.int32)])
    assert message in capfd.readouterr().err
    out = np.zeros(2, np.int32)  # and the device goes on
    assert run("p0[0] = 1;", [out]) == 0 and out[0] == 1


def test_writes_beside_a_buffer_are_found():
    with pytest.raises(AssertionError, match="outside the buffer"):
        run("p0[-1] = 0;", [np.zeros(4, np.int32)])


def test_a_host_address_is_refused(capfd):
    from emulator.run import run_launch

    host = np.zeros(4, np.int32)
    source = 'extern "C" __global__ void kernel_h(int* p) { *p = 1; }'
    with pytest.raises(RuntimeError, match="cuLaunchKernel"):
        run_launch(Launch(source, "kernel_h", (1, 1, 1), (1, 1, 1), (Word(0),)), [host.ctypes.data.to_bytes(8, "little")], b"")
    assert "memory of the host" in capfd.readouterr().err


def test_views_keep_their_strides_and_alignment():
    flat = np.arange(40, dtype=np.int32)
    view = flat[3:33].reshape(5, 6)[:, ::2]
    out = np.zeros((2, 15), np.int64)
    body = """
    if (threadIdx.x < 15) p1[threadIdx.x] = p0[threadIdx.x / 3 * 6 + threadIdx.x % 3 * 2];
    if (threadIdx.x == 0) p1[15] = (unsigned long long)p0 % 16;"""
    assert run(body, [view, out]) == 0
    assert out[0].tolist() == view.ravel().tolist()
    assert out[1, 0] == view.__array_interface__["data"][0] % 16


def test_launches_that_a_device_refuses():
    out = np.zeros(1, np.int32)
    for geometry in ({"block": (1025, 1, 1)}, {"grid": (1, 70000, 1)}, {"grid": (0, 1, 1)}):
        with pytest.raises(RuntimeError, match="cuLaunchKernel"):
            run("", [out], **geometry)


RACE = """
import os
import subprocess
import sys

import numpy as np
from emulator.test_emulator import run
import emulator
emulator.activate()
out = np.zeros(128, np.int32)
run('''
    __shared__ int values[128];
    values[threadIdx.x] = threadIdx.x;
    BARRIER
    p0[threadIdx.x] = values[(threadIdx.x + 64) % 128];''', [out], block=(128, 1, 1))
print((out == (np.arange(128) + 64) % 128).all())
"""


@pytest.mark.parametrize("barrier", ["__syncthreads();", "__syncwarp();"])
def test_another_order_of_threads_shows_races_and_nothing_else(barrier):
    environment = dict(os.environ, EMULATED_ORDER="7", PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
    command = [sys.executable, "-c", RACE.replace("BARRIER", barrier)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(barrier == "__syncthreads();")
