"""Inline PTX on the emulated device: conversions, copies, matrices, barriers, tensor maps, against NumPy."""

import ml_dtypes
import numpy as np
import pytest

from emulator.ptx import translate_asm
from emulator.ptx_instructions import Refused
from emulator.run import run_lowered
from emulator.test_emulator import run
from tensorsmith.targets.cuda.kernel import Launch, Lowered, TensorMap, Word
from tensorsmith.targets.cuda.tensor_core_functions import with_tensor_core_functions

random = np.random.default_rng(5)


@pytest.fixture(autouse=True, scope="module")
def emulated():
    import emulator

    emulator.activate()


def kernel(body, arrays, *, before="", **geometry):
    """`run` with the device functions that the body calls."""
    return run(body, arrays, before=with_tensor_core_functions(body) + "\n" + before, **geometry)


def bits(array):
    return array.view(np.uint16)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_conversions_of_halves(dtype):
    name = "float16" if dtype is np.float16 else "bfloat16"
    with np.errstate(all="ignore"):
        x = np.concatenate([random.standard_normal(2000) * 10.0 ** random.integers(-9, 9, 2000),
                            [0.0, -0.0, np.inf, -np.inf, 65519, 65520, 2**-25, 2**-24 * 1.5]]).astype(np.float32)  # fmt: skip
    halves, pairs, back = np.zeros(len(x), np.uint16), np.zeros(len(x) // 2, np.int32), np.zeros(len(x), np.float32)
    body = f"""
    for (int i = threadIdx.x; i < {len(x)}; i += 32) {{
        p1[i] = narrow_{name}(p0[i]);
        p3[i] = widen_{name}(p1[i]);
        if (i % 2 == 0) p2[i / 2] = pack_{name}(p0[i], p0[i + 1]);
    }}"""
    assert kernel(body, [x, halves, pairs, back]) == 0
    with np.errstate(all="ignore"):
        expected = x.astype(dtype)
    assert np.array_equal(halves, bits(expected))
    assert np.array_equal(pairs.view(np.uint16), bits(expected))
    assert np.array_equal(back, expected.astype(np.float32))


def test_asynchronous_copies_are_there_after_the_wait_only():
    x = np.arange(64, dtype=np.float32)
    out = np.zeros((3, 32), np.float32)
    body = """
    __shared__ __align__(16) float tile[128];
    const int i = threadIdx.x;
    cp_async_4(shared_address(tile + i), p0 + i, 4);
    cp_async_commit();
    cp_async_4(shared_address(tile + 32 + i), p0 + 32 + i, i < 8 ? 4 : 0);
    cp_async_commit();
    p1[i] = tile[i];
    cp_async_wait<1>();
    p1[32 + i] = tile[i] + (tile[32 + i] == tile[32 + i] ? 1000 : 0);
    cp_async_wait<0>();
    p1[64 + i] = tile[32 + i];"""
    assert kernel(body, [x, out]) == 0
    assert np.isnan(out[0]).all()
    assert out[1].tolist() == x[:32].tolist()
    assert out[2].tolist() == [32.0 + i if i < 8 else 0 for i in range(32)]


@pytest.mark.parametrize("transposed", [False, True])
def test_matrices_of_a_warp(transposed):
    x = np.arange(4 * 64, dtype=np.uint16).reshape(4, 8, 8)
    out = np.zeros((32, 4), np.int32)
    stored = np.zeros((4, 8, 8), np.uint16)
    body = f"""
    __shared__ __align__(16) unsigned short tile[256], back[256];
    for (int i = threadIdx.x; i < 256; i += 32) tile[i] = p0[i];
    __syncthreads();
    unsigned int r[4];
    ldmatrix_x4{"_transposed" if transposed else ""}(r, shared_address(tile + 8 * threadIdx.x));
    for (int i = 0; i < 4; i++) p1[4 * threadIdx.x + i] = r[i];
    stmatrix_x4(shared_address(back + 8 * threadIdx.x), r[0], r[1], r[2], r[3]);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += 32) p2[i] = back[i];"""
    assert kernel(body, [x, out, stored]) == 0
    seen = x.swapaxes(1, 2) if transposed else x
    lane, matrix, half = np.indices((32, 4, 2))
    assert np.array_equal(bits(out).reshape(32, 4, 2), seen[matrix, lane // 4, 2 * (lane % 4) + half])
    assert np.array_equal(stored, seen)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "tf32"])
def test_products_of_a_warp(name):
    k = 8 if name == "tf32" else 16
    dtype = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "tf32": np.float32}[name]
    a, b = (random.standard_normal(s).astype(np.float32).astype(dtype) for s in ((16, k), (k, 8)))
    c = random.standard_normal((16, 8)).astype(np.float32)
    lane = np.arange(32)
    if name == "tf32":
        a, b = (v.view(np.uint32) & 0xFFFFE000 for v in (a, b))
        a, b = a.view(np.float32), b.view(np.float32)
        left = np.stack([a[lane // 4 + 8 * (r % 2), lane % 4 + 4 * (r // 2)] for r in range(4)], 1).view(np.int32)
        right = np.stack([b[lane % 4 + 4 * r, lane // 4] for r in range(2)], 1).view(np.int32)
    else:
        column = 2 * (lane % 4)[:, None] + np.arange(2)
        left = np.stack([a[(lane // 4 + 8 * (r % 2))[:, None], column + 8 * (r // 2)] for r in range(4)], 1)
        right = np.stack([b[column + 8 * r, (lane // 4)[:, None]] for r in range(2)], 1)
        left, right = (np.ascontiguousarray(v).view(np.int32)[..., 0] for v in (left, right))
    body = f"""
    unsigned int a[4], b[2];
    float d[4];
    const int lane = threadIdx.x, row = lane / 4, column = 2 * (lane % 4);
    for (int i = 0; i < 4; i++) a[i] = p0[4 * lane + i];
    for (int i = 0; i < 2; i++) b[i] = p1[2 * lane + i];
    for (int i = 0; i < 4; i++) d[i] = p2[8 * (row + i / 2 * 8) + column + i % 2];
    mma_{name}(d, a, b);
    for (int i = 0; i < 4; i++) p2[8 * (row + i / 2 * 8) + column + i % 2] = d[i];"""
    expected = a.astype(np.float64) @ b.astype(np.float64) + c
    assert kernel(body, [np.ascontiguousarray(left), np.ascontiguousarray(right), c]) == 0
    np.testing.assert_allclose(c, expected, rtol=1e-6, atol=1e-6)


def test_a_copy_by_a_tensor_map_and_an_mbarrier():
    x = random.standard_normal((3, 40, 64)).astype(np.float16)
    out = np.zeros((16, 64), np.float16)
    body = """
    extern __shared__ __align__(1024) unsigned char tile[];
    __shared__ unsigned long long full;
    const unsigned int barrier = shared_address(&full);
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        mbarrier_fence();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect(barrier, 2048);
        tensor_load_3d(shared_address(tile), &map, 0, 30, 2, barrier);
    }
    mbarrier_wait(barrier, 0);
    for (int i = threadIdx.x; i < 1024; i += 64) {  // 16 bytes at a time are exchanged: by the row's last three bits
        const int row = i / 64, column = i % 64;
        p0[i] = ((unsigned short*)tile)[64 * row + ((column / 8) ^ (row % 8)) * 8 + column % 8];
    }"""
    declared = "struct __align__(64) TensorMap { unsigned long long opaque[16]; };\n"
    text = with_tensor_core_functions(body) + f"""
{declared}
extern "C" __global__ void kernel_tm(const __grid_constant__ TensorMap map, unsigned short* p0) {{ {body} }}"""
    box = TensorMap(1, "FLOAT16", (64, 40, 3), (128, 128 * 40), (64, 16, 1))
    launch = Launch(text, "kernel_tm", (1, 1, 1), (64, 1, 1), (box, Word(0)), 2048)
    assert run_lowered(Lowered("tm", (launch,), 2), [bits(out), bits(x)]) == 0
    assert np.array_equal(out[:10], x[2, 30:]) and not out[10:].any()  # zeros outside the tensor


@pytest.mark.parametrize("across", [0, 1])
def test_products_of_a_warpgroup(across):
    """d = a b with both operands swizzled in shared memory, k or the rows side by side."""
    a, b = (random.standard_normal(s).astype(np.float16) for s in ((64, 64), (64, 16)))  # b as (n = 64, k = 16) transposed
    b = random.standard_normal((64, 64)).astype(np.float16)  # (n, k)
    out = np.zeros((64, 64), np.float32)
    body = f"""
    extern __shared__ __align__(1024) unsigned char tiles[];
    unsigned short *a = (unsigned short*)tiles, *b = a + 4096;
    for (int i = threadIdx.x; i < 4096; i += 128) {{
        const int row = i / 64, k = i % 64, line = {"k" if across else "row"}, place = {"row" if across else "k"};
        const int at = 64 * line + ((place / 8) ^ (line % 8)) * 8 + place % 8;
        a[at] = p0[i];
        b[at] = p1[i];
    }}
    __syncthreads();
    fence_async_shared();
    float d[32];
    wgmma_fence();
    for (int step = 0; step < 4; step++) {{
        const int offset = step * {2048 if across else 32};
        wgmma_n64_float16<{across}, {across}>(d, matrix_descriptor(shared_address(a) + offset, 8192, 1024),
            matrix_descriptor(shared_address(b) + offset, 8192, 1024), step);
    }}
    wgmma_commit();
    wgmma_wait<0>();
    settle(d);
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
    for (int i = 0; i < 32; i++) p2[64 * (row + i / 2 % 2 * 8) + i / 4 * 8 + 2 * (lane % 4) + i % 2] = d[i];"""
    arrays = [bits(a), bits(b), out]
    assert kernel(body, arrays, block=(128, 1, 1), shared=16384) == 0
    np.testing.assert_allclose(out, a.astype(np.float64) @ b.astype(np.float64).T, rtol=1e-5, atol=1e-5)


def test_barriers_of_some_warps():
    out = np.zeros(1, np.int32)
    body = """
    __shared__ int value;
    if (threadIdx.x < 64) {
        barrier_sync(1, 128);
        if (threadIdx.x == 0) p0[0] = value;
    } else {
        if (threadIdx.x == 64) value = 7;
        __syncwarp();
        barrier_arrive(1, 128);
    }"""
    assert kernel(body, [out], block=(128, 1, 1)) == 0
    assert out[0] == 7


def test_clusters_share_their_memory():
    out = np.zeros(8, np.int32)
    before = """
__device__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ int remote(const int* p, unsigned int rank) {
    unsigned int at = (unsigned int)__cvta_generic_to_shared(p);
    int value;
    asm volatile("{.reg .u32 there; mapa.shared::cluster.u32 there, %1, %2; ld.shared::cluster.s32 %0, [there];}"
        : "=r"(value) : "r"(at), "r"(rank));
    return value;
}"""
    body = """
    __shared__ int mine;
    if (threadIdx.x == 0) mine = 10 * blockIdx.x;
    cluster_sync();
    unsigned int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 1) p0[blockIdx.x] = remote(&mine, (rank + 1) % 4);
    cluster_sync();"""
    assert run(body, [out], before=before, grid=(8, 1, 1), cluster=(4, 1, 1)) == 0
    assert out.tolist() == [10, 20, 30, 0, 50, 60, 70, 40]


def test_loads_of_vectors_packed_arithmetic_and_branches():
    x = np.arange(8, dtype=np.int32)
    out = np.zeros(6, np.int32)
    before = """
__device__ void all(const int* p, int* q) {
    int a, b, c, d;
    asm volatile("ld.global.nc.L1::no_allocate.v4.s32 {%0, %1, %2, %3}, [%4+16];"
        : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(p));
    asm volatile("{.reg .pred q; .reg .b32 t<2>; mov.b32 t0, 0; AGAIN: add.s32 t0, t0, %1; setp.lt.s32 q, t0, 20; @q bra AGAIN;"
        " mov.b32 %0, t0;}" : "=r"(q[0]) : "r"(c));
    unsigned int pair;
    asm("fma.rn.bf16x2 %0, %1, %1, %1;" : "=r"(pair) : "r"(0x40003f80));  // (2, 1)
    q[1] = pair;
    asm("prmt.b32 %0, %1, %2, 0x5410;" : "=r"(q[2]) : "r"(0x11112222), "r"(0x33334444));
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" :: "l"(q + 4), "r"(a), "r"(d));
    asm("lop3.b32 %0, %1, %2, %3, 0xe8;" : "=r"(q[3]) : "r"(12), "r"(10), "r"(6));
}"""
    assert run("if (threadIdx.x == 0) all(p0, p1);", [x, out], before=before) == 0
    assert out.tolist() == [24, 0x40C04000, 0x44442222, (12 & 10) | (12 & 6) | (10 & 6), 4, 7]


def test_what_is_not_known_is_named():
    with pytest.raises(Refused, match="tcgen05"):
        translate_asm('asm("tcgen05.mma %0, %1;" : "=r"(a) : "r"(b));')


def test_an_mbarrier_that_nobody_completes_is_a_deadlock(capfd):
    body = """
    __shared__ unsigned long long full;
    if (threadIdx.x == 0) mbarrier_init(shared_address(&full), 2);
    __syncthreads();
    if (threadIdx.x == 0) mbarrier_arrive(shared_address(&full));
    mbarrier_wait(shared_address(&full), 0);"""
    with pytest.raises(RuntimeError, match="cuLaunchKernel"):
        kernel(body, [np.zeros(1, np.int32)])
    assert "deadlock" in capfd.readouterr().err

