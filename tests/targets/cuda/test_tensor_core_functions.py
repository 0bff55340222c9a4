"""Device functions over PTX compile for the architectures that have them."""

import pytest
from cuda_compiles import compile_all

from tensorsmith.targets.cuda.kernel import Launch, Lowered
from tensorsmith.targets.cuda.tensor_core_functions import TENSOR_CORE_FUNCTIONS, with_tensor_core_functions

AMPERE = """
extern "C" __global__ void k(float* p, unsigned int at) {
    float d[4] = {0, 0, 0, 0};
    unsigned int a[4], b[2] = {at, pack_float16(p[0], p[1])}, c[4];
    cp_async_16(at, p, 16); cp_async_8(at + 16, p, 8); cp_async_4(at + 32, p, 0);
    cp_async_commit(); cp_async_wait<0>();
    ldmatrix_x4(a, at); ldmatrix_x4_transposed(c, at + shared_address(p));
    mma_float16(d, a, b); mma_bfloat16(d, c, b); mma_tf32(d, a, b);
    p[0] = d[0] + pack_bfloat16(d[1], d[2]) + round_to_tf32(d[3]);
}"""

HOPPER = """
extern "C" __global__ void k(float* p, const void* map, unsigned int at) {
    float d[32], e[64], f[128];
    unsigned int a[4] = {at, at, at, at};
    for (int i = 0; i < 32; i++) d[i] = p[i];
    for (int i = 0; i < 64; i++) e[i] = p[i];
    for (int i = 0; i < 128; i++) f[i] = p[i];
    fewer_registers<24>(); more_registers<240>();
    mbarrier_init(at, 1); mbarrier_fence(); mbarrier_arrive_expect(at, 128); mbarrier_arrive(at); mbarrier_wait(at, 1);
    tensor_prefetch(map);
    tensor_load_2d(at, map, 1, 2, at); tensor_load_3d(at, map, 1, 2, 3, at); tensor_load_4d(at, map, 1, 2, 3, 4, at);
    tensor_load_5d(at, map, 1, 2, 3, 4, 5, at);
    cluster_sync();
    p[0] = cluster_rank() + cluster_load_32(at, 1) + cluster_load_64(at, 0);
    wgmma_fence();
    wgmma_n64_bfloat16<0, 1>(d, matrix_descriptor(at, 8192, 1024), at, 1);
    wgmma_n128_tf32(e, at, at, 1);
    wgmma_n256_float16<1, 1>(f, at, at, 0);
    wgmma_n128_bfloat16_registers<1>(e, a, at, 1);
    wgmma_commit(); wgmma_wait<0>();
    settle(d); settle(e); settle(f);
    stmatrix_x4(at, 1, 2, 3, 4); fence_async_shared(); barrier_sync(1, 128); barrier_arrive(2, 256);
    tensor_store_2d(map, 1, 2, at); tensor_store_3d(map, 1, 2, 3, at); tensor_store_4d(map, 1, 2, 3, 4, at);
    tensor_store_5d(map, 1, 2, 3, 4, 5, at);
    tensor_store_commit(); tensor_store_wait_read<0>();
    for (int i = 0; i < 32; i++) p[i] = d[i] + e[i] + f[i];
}"""


@pytest.mark.parametrize(("kernel", "arch"), [(AMPERE, "sm_80"), (AMPERE, "sm_90a"), (HOPPER, "sm_90a")])
def test_they_compile(kernel: str, arch: str):
    launch = Launch(with_tensor_core_functions(kernel) + kernel, "k", (1, 1, 1), (128, 1, 1), ())
    compile_all(Lowered("k", (launch,), 0), (arch,))


def test_every_function_is_tried():
    untried = [name for name in TENSOR_CORE_FUNCTIONS if name not in AMPERE + HOPPER]
    assert untried == []


def test_only_what_is_called_comes_along():
    text = with_tensor_core_functions("wgmma_n64_bfloat16<0, 1>(d, a, b, 1); cp_async_commit();")
    assert text.count("__device__") == 2
