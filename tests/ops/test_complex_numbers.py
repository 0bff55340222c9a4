"""Complex tensors against PyTorch: parts as views, conversion, printing, promotion, writes through parts, refusals."""

import warnings

import numpy as np
import pytest
import torch

import tensorsmith as ts

LIBRARIES = (ts, torch)
Z = [[1 + 2j, 3 - 1j, -0.5j], [0j, -2.0 + 0j, 1.5 + 1.5j]]


def values(x):
    return x.detach().resolve_conj().numpy()


def both(function):
    """What a function of the library gives in both."""
    return [function(library) for library in LIBRARIES]


def agree(function, rtol=1e-6):
    """Equal values, dtype, shape and strides."""
    ours, theirs = both(function)
    np.testing.assert_allclose(values(ours), values(theirs), rtol=rtol, atol=1e-7)
    assert ours.dtype.name == str(theirs.dtype).removeprefix("torch.")
    assert ours.stride() == theirs.stride()
    return ours, theirs


VIEWS = {
    "real": lambda L, x: x.real,
    "imag": lambda L, x: x.imag,
    "view_as_real": lambda L, x: L.view_as_real(x),
    "part of a slice": lambda L, x: x[:, 1:].imag,
    "part of a transpose": lambda L, x: x.T.real,
    "slice of a part": lambda L, x: x.imag[1],
    "and back": lambda L, x: L.view_as_complex(L.view_as_real(x))[0],
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_views_of_parts_share_memory(name, dtype):
    def view(L):
        x = L.tensor(Z, dtype=getattr(L, dtype))
        return x, VIEWS[name](L, x)

    agree(lambda L: view(L)[1])
    for library in LIBRARIES:
        x, part = view(library)
        part.fill_(7)
        written = values(x)
        again = values(VIEWS[name](library, x))
        assert (again == 7).all() and not (written == np.asarray(Z)).all()
    np.testing.assert_array_equal(*[values(view(L)[0]) for L in LIBRARIES])


@pytest.mark.parametrize("name", VIEWS)
def test_gradients_through_views_of_parts(name):
    def gradient(L):
        x = L.tensor(Z, dtype=L.complex128, requires_grad=True)
        part = VIEWS[name](L, x)
        (part * part).abs().sum().backward()
        return x.grad

    agree(gradient)


@pytest.mark.parametrize("name", VIEWS)
def test_history_of_writes_through_parts(name):
    def gradient(L):
        x = L.tensor(Z, dtype=L.complex128, requires_grad=True)
        base = x * (2 - 1j)
        VIEWS[name](L, base).mul_(3)
        (base * base.conj() * (1 + 2j)).real.sum().backward()
        return x.grad

    agree(gradient)


def test_a_complex_view_of_real_memory_is_written_with_its_history():
    def gradient(L):
        x = L.tensor([[1.0, 2.0], [3.0, -1.0]], dtype=L.float64, requires_grad=True)
        base = x * 2
        L.view_as_complex(base)[0].mul_(1 + 2j)
        (base**2).sum().backward()
        return x.grad

    agree(gradient)


def test_setting_parts():
    def written(L):
        x = L.tensor(Z)
        x.real = L.tensor([1.0, 2.0, 3.0])
        x.imag = 4.0 if L is ts else L.tensor(4.0)
        return x

    agree(written)


PROMOTED = [
    (lambda L: L.tensor([1, 2]) + 1j, "int64 tensor, complex number"),
    (lambda L: L.tensor([1.0, 2.0]) * 2j, "float32 tensor, complex number"),
    (lambda L: L.tensor([1.0, 2.0], dtype=L.float64) * 2j, "float64 tensor, complex number"),
    (lambda L: L.tensor([True, False]) * (1 - 1j), "bool tensor, complex number"),
    (lambda L: L.tensor([1.0], dtype=L.bfloat16) * 1j, "bfloat16 tensor, complex number"),
    (lambda L: L.tensor([1 + 1j]) * 2.5, "complex64 tensor, float"),
    (lambda L: L.tensor([1 + 1j]) + L.tensor(2.5, dtype=L.float64), "complex64 tensor, zero-dim float64"),
    (lambda L: L.tensor([1 + 1j]) + L.tensor([2.5], dtype=L.float64), "complex64 tensor, float64 tensor"),
    (lambda L: L.tensor([1.5]) + L.tensor(1j, dtype=L.complex128), "float32 tensor, zero-dim complex128"),
    (lambda L: L.tensor([1.5], dtype=L.float16) * L.tensor([1j]), "float16 tensor, complex64 tensor"),
    (lambda L: 2j - L.tensor([1.0, 2.0]), "number first"),
    (lambda L: 1j ** L.tensor([1.0, 2.0]), "power of a number"),
]


@pytest.mark.parametrize("function", [f for f, _ in PROMOTED], ids=[name for _, name in PROMOTED])
def test_promotion(function):
    agree(function)


def test_numbers_follow_the_default_dtype():
    for library in LIBRARIES:
        library.set_default_dtype(library.float64)
    try:
        agree(lambda L: L.tensor(1j))
        agree(lambda L: L.tensor([1, 2]) * 1j)
        agree(lambda L: L.full((2,), 1 + 1j))
    finally:
        for library in LIBRARIES:
            library.set_default_dtype(library.float32)


CREATED = {
    "tensor": lambda L: L.tensor(Z),
    "zeros": lambda L: L.zeros(2, 3, dtype=L.complex64),
    "ones": lambda L: L.ones(2, dtype=L.cdouble),
    "full": lambda L: L.full((2, 2), 1 - 2j),
    "full of a float": lambda L: L.full((2,), 1.5, dtype=L.cfloat),
    "eye": lambda L: L.eye(3, dtype=L.complex64),
    "linspace": lambda L: L.linspace(0, 1 + 2j, 5, dtype=L.complex128),
    "zeros_like": lambda L: L.zeros_like(L.tensor(Z)),
    "full_like": lambda L: L.full_like(L.tensor(Z), 2j),
    "new_full": lambda L: L.tensor(Z).new_full((2,), 1j),
    "complex": lambda L: L.complex(L.tensor([1.0, 2.0]), L.tensor([[3.0], [4.0]])),
    "polar": lambda L: L.polar(L.tensor([1.0, 2.0], dtype=L.float64), L.tensor([0.5, -3.0], dtype=L.float64)),
}


@pytest.mark.parametrize("name", CREATED)
def test_creation(name):
    agree(CREATED[name])


def test_random_numbers_have_variance_one():
    ts.manual_seed(0)
    x = values(ts.randn(200, 200, dtype=ts.complex128))
    assert abs(x.real.var() - 0.5) < 0.02 and abs(x.imag.var() - 0.5) < 0.02 and abs((x.real * x.imag).mean()) < 0.01
    y = values(ts.rand(100, 100, dtype=ts.complex64))
    assert y.dtype == np.complex64
    assert ((y.real >= 0) & (y.real < 1) & (y.imag >= 0) & (y.imag < 1)).all() and y.imag.std() > 0.25


def test_numbers_come_back():
    x = ts.tensor([1.5 + 2j])
    assert x.item() == 1.5 + 2j and x.tolist() == [1.5 + 2j] and complex(x) == 1.5 + 2j
    assert float(ts.tensor(2 + 0j)) == 2.0 and int(ts.tensor(3 + 0j)) == 3 and bool(ts.tensor(1j))
    array = np.array([1j, 2.0])
    shared = ts.from_numpy(array)
    shared[0] = 5
    assert array[0] == 5 and shared.numpy().base is not None
    for library in LIBRARIES:
        with pytest.raises(RuntimeError):
            float(library.tensor(1 + 1j))


def test_a_cast_to_real_warns():
    for library in LIBRARIES:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            y = library.tensor([1 + 2j]).to(library.float32)
            assert y.tolist() == [1.0]
            if library is ts:  # PyTorch warns once a process
                assert [str(w.message)[:31] for w in caught] == ["Casting complex values to real "]
    agree(lambda L: L.tensor([1 + 2j, 1j, 0j]).to(L.bool))


PRINTED = [
    [1 + 2j, 3 - 1j],
    [[1.5 + 2j], [-0.25j], [100 + 0j]],
    [complex(np.inf, np.nan), 1 - 1j],
    [1e10 + 1j, 1e-9j],
    1 - 2j,
    [],
]


@pytest.mark.parametrize("data", PRINTED, ids=str)
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_printing(data, dtype):
    ours, theirs = both(lambda L: repr(L.tensor(data, dtype=getattr(L, dtype))))
    assert ours == theirs.replace("torch.", "tensorsmith.")


def test_saved_and_loaded(tmp_path):
    x = ts.tensor(Z, dtype=ts.complex128)
    ts.save({"x": x}, tmp_path / "x.safetensors")
    found = ts.load(tmp_path / "x.safetensors")["x"]
    assert found.dtype is ts.complex128 and found.tolist() == x.tolist()


REFUSED = {
    "lt": lambda L, z: z < z,
    "maximum": lambda L, z: L.maximum(z, z),
    "floor": lambda L, z: z.floor(),
    "sign": lambda L, z: z.sign(),
    "max": lambda L, z: z.max(),
    "amax": lambda L, z: z.amax(1),
    "cummax": lambda L, z: z.cummax(0),
    "relu": lambda L, z: z.relu(),
    "erf": lambda L, z: z.erf(),
    "bitwise_not": lambda L, z: L.bitwise_not(z),
    "remainder": lambda L, z: z % 2,
    "floor_divide": lambda L, z: z // 2,
    "arange": lambda L, z: L.arange(3, dtype=L.complex64),
    "imag of real": lambda L, z: L.tensor([1.0]).imag,
    "complex of integers": lambda L, z: L.complex(L.tensor([1]), L.tensor([2])),
    "complex of two dtypes": lambda L, z: L.complex(L.tensor([1.0]), L.tensor([2.0], dtype=L.float64)),
    "view_as_real of real": lambda L, z: L.view_as_real(L.tensor([1.0])),
    "view_as_complex of three": lambda L, z: L.view_as_complex(L.ones(2, 3)),
    "view_as_complex of a scalar": lambda L, z: L.view_as_complex(L.tensor(1.0)),
    "view_as_complex at an odd place": lambda L, z: L.view_as_complex(L.ones(5)[1:3]),
    "view_as_complex with a gap": lambda L, z: L.view_as_complex(L.ones(2, 4)[:, ::2]),
    "a complex number in a real tensor": lambda L, z: L.ones(2).fill_(1j),
    "a complex result in a real tensor": lambda L, z: L.ones(2).add_(1j),
    "backward of a complex scalar": lambda L, z: z.requires_grad_().sum().backward(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_have_the_same_class(name):
    found = []
    for library in LIBRARIES:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - the class is compared below
            REFUSED[name](library, library.tensor(Z))
        found.append(caught.type)
    assert found[0] is found[1]


def test_nan_and_infinities_are_replaced_in_each_part():
    agree(lambda L: L.nan_to_num(L.tensor([complex(np.nan, np.inf), complex(-np.inf, 1.0), 1j])))
    agree(lambda L: L.nan_to_num(L.tensor([complex(np.nan, np.inf), 2j]), nan=1.5, posinf=3.0))


def test_norms_are_real():
    for order in (0, 1, 2, 3, float("inf"), float("-inf")):
        agree(lambda L, order=order: L.linalg.vector_norm(L.tensor(Z), order, dim=1))
    agree(lambda L: L.tensor(Z).var(1))
    agree(lambda L: L.tensor(Z).norm("nuc"))
    for library in LIBRARIES:
        with pytest.raises(RuntimeError, match="dtype should be real"):
            library.linalg.vector_norm(library.ones(2), dtype=library.complex64)


def test_transforms_of_complex_functions():
    for name in ("grad", "vmap"):
        agree(lambda L, name=name: getattr(L.func, name)(lambda z: (z * z * 1j).abs().sum())(L.tensor(Z)))
    for function in (lambda z: z.angle(), lambda z: z.sgn(), lambda z: z ** (2 + 1j), lambda z: z.real * z.imag):
        directions = [L.tensor(Z) * 1j + 1 for L in LIBRARIES]
        points = [L.tensor(Z) + (0.1 + 0.2j) for L in LIBRARIES]
        found = [L.func.jvp(function, (z,), (v,))[1] for L, z, v in zip(LIBRARIES, points, directions)]
        np.testing.assert_allclose(*[values(x) for x in found], rtol=1e-5)


def test_elements_are_found():
    for library in LIBRARIES:
        z = library.tensor(Z)
        assert 3 - 1j in z and 3 not in z and library.tensor(-0.5j) in z
        with pytest.raises(RuntimeError, match="only supports Tensor or scalar"):
            assert "1" in z
