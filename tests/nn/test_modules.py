"""Module against PyTorch's: registration, walks, text, conversions, copies."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import tensorsmith as ts

LIBRARIES = {"ts": ts, "torch": torch}


def same(function):
    """What `function(library)` gives for both libraries, as text with PyTorch's name replaced."""
    texts = []
    for library in (torch, ts):
        try:
            result = function(library)
        except Exception as error:  # noqa: BLE001 - the error is what is compared
            result = f"{type(error).__name__}: {error.args[0]}"
        texts.append(str(result).replace("torch.FloatTensor", "torch.Tensor").replace("torch", "tensorsmith"))
    assert texts[1] == texts[0]
    return texts[1]


def model(library):
    nn = library.nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(4)
            self.scale = nn.Parameter(library.ones(4))
            self.register_parameter("nothing", None)
            self.register_buffer("seen", library.zeros(2))
            self.register_buffer("hidden", library.zeros(3), persistent=False)
            self.plain = library.zeros(5)
            self.act = nn.Sequential(nn.ReLU(), nn.LayerNorm(4, elementwise_affine=False))

        def forward(self, x):
            return self.act(self.norm(x) * self.scale)

        def extra_repr(self):
            return "block=1"

    root = nn.Sequential(Block(), nn.ModuleList([nn.ReLU(), nn.ReLU(), nn.Tanh()]), nn.Identity())
    root.add_module("shared", root[0].norm)
    return root


def test_names_and_text():
    same(lambda lib: list(model(lib).state_dict()))
    same(lambda lib: [n for n, _ in model(lib).named_parameters()])
    same(lambda lib: [n for n, _ in model(lib).named_parameters(remove_duplicate=False)])
    same(lambda lib: [n for n, _ in model(lib).named_parameters(prefix="p", recurse=True)])
    same(lambda lib: [n for n, _ in model(lib)[0].named_parameters(recurse=False)])
    same(lambda lib: [n for n, _ in model(lib).named_buffers()])
    same(lambda lib: [(n, type(m).__name__) for n, m in model(lib).named_modules()])
    same(lambda lib: [n for n, _ in model(lib).named_modules(remove_duplicate=False)])
    same(lambda lib: [(n, type(m).__name__) for n, m in model(lib).named_children()])
    assert "ModuleList" in same(lambda lib: repr(model(lib)))


def test_plain_tensors_are_not_state():
    block = model(ts)[0]
    assert isinstance(block.plain, ts.Tensor)
    assert "plain" not in block.state_dict() and "hidden" not in block.state_dict()
    assert block.state_dict()["scale"].requires_grad is False
    assert block.state_dict(keep_vars=True)["scale"] is block.scale


def registered_before_init(lib, what):
    class Bad(lib.nn.Module):
        def __init__(self):
            self.thing = what(lib)

    Bad()


@pytest.mark.parametrize(
    "what", [lambda lib: lib.nn.Parameter(lib.ones(1)), lambda lib: lib.nn.ReLU()], ids=["parameter", "module"]
)
def test_missing_init_is_named(what):
    with pytest.raises(AttributeError, match=r"before Module.__init__\(\) call.*super\(\).__init__\(\) first in Bad"):
        registered_before_init(ts, what)
    with pytest.raises(AttributeError, match=r"before Module.__init__\(\) call"):
        registered_before_init(torch, what)


def test_attribute_errors_name_the_class():
    same(lambda lib: model(lib)[0].nope)

    class Bad(ts.nn.Module):
        def __init__(self):
            pass

    with pytest.raises(AttributeError, match="super"):
        _ = Bad().weight


@pytest.mark.parametrize(
    "action",
    [
        lambda lib, m: setattr(m, "scale", lib.ones(4)),
        lambda lib, m: setattr(m, "norm", 3),
        lambda lib, m: setattr(m, "nothing", 3),
        lambda lib, m: setattr(m, "seen", 3),
        lambda lib, m: m.register_parameter("a.b", None),
        lambda lib, m: m.register_parameter("", None),
        lambda lib, m: m.register_parameter("forward", None),
        lambda lib, m: m.register_parameter("x", lib.ones(1)),
        lambda lib, m: m.register_buffer("a.b", None),
        lambda lib, m: m.register_buffer("scale", None),
        lambda lib, m: m.get_parameter("norm.nope"),
        lambda lib, m: m.get_submodule("norm.weight"),
        lambda lib, m: m.to(lib.int64),
        lambda lib, m: m.train("yes"),
        lambda lib, m: lib.nn.Module()(1),
        lambda lib, m: lib.nn.Parameter(lib.ones(2).long()),
    ],
)
def test_refusals_are_pytorchs(action):
    assert "Error" in same(lambda lib: action(lib, model(lib)[0]))


def test_assignment_moves_a_name_between_tables():
    def moves(lib):
        m = lib.nn.Module()
        m.a = 3
        m.a = lib.nn.Parameter(lib.ones(2))
        seen = [list(m._parameters), "a" in m.__dict__]
        m.a = None
        seen.append(m.a)
        del m.a
        m.a = lib.nn.ReLU()
        seen += [list(m._parameters), list(m._modules)]
        m.b = lib.nn.Buffer(lib.ones(2), persistent=False)
        seen += [list(m._buffers), list(m.state_dict())]
        del m.a
        seen += [list(m._modules), hasattr(m, "a"), "b" in dir(m)]
        return seen

    same(moves)


def test_lookups_by_dotted_name():
    m = model(ts)
    assert m.get_parameter("0.norm.weight") is m[0].norm.weight
    assert m.get_buffer("0.seen") is m[0].seen
    assert m.get_submodule("") is m and m.get_submodule("0.act.0") is m[0].act[0]


def test_modes_apply_and_requires_grad():
    def walk(lib):
        m = model(lib)
        order = []
        m.apply(lambda module: order.append(type(module).__name__))
        m.eval()
        flags = [module.training for module in m.modules()]
        m.train()
        m.requires_grad_(False)
        return order, flags, m.training, [p.requires_grad for p in m.parameters()]

    same(walk)


def test_conversion_keeps_the_parameters_and_converts_gradients():
    m = model(ts)[0]
    parameter = m.scale
    parameter.grad = ts.ones(4)
    m.count = ts.nn.Buffer(ts.zeros(1, dtype=ts.int64))
    assert m.double() is m
    assert m.scale is parameter and parameter.dtype is ts.float64 and parameter.grad.dtype is ts.float64
    assert parameter.requires_grad and parameter.is_leaf
    assert m.count.dtype is ts.int64 and m.hidden.dtype is ts.float64
    assert m.to(ts.zeros(1)).scale.dtype is ts.float32
    assert m.to("cpu", ts.bfloat16).norm.weight.dtype is ts.bfloat16
    assert m.half().float().scale.tolist() == [1.0] * 4


def test_zero_grad():
    m = model(ts)[0]
    m.scale.grad = ts.ones(4)
    kept = m.scale.grad
    m.zero_grad(set_to_none=False)
    assert m.scale.grad is kept and kept.tolist() == [0.0] * 4
    m.zero_grad()
    assert m.scale.grad is None


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_copies_are_independent_and_equal(copier):
    m = ts.nn.Sequential(ts.nn.LayerNorm(3), ts.nn.ReLU())
    m.add_module("again", m[0])
    m.register_buffer("table", ts.arange(3))
    with ts.no_grad():
        m[0].weight.mul_(3)
    other = copier(m)
    assert repr(other) == repr(m)
    assert other[0].weight.tolist() == [3.0] * 3 and other.table.tolist() == [0, 1, 2]
    assert isinstance(other[0].weight, ts.nn.Parameter) and other[0].weight.requires_grad
    assert other.again is other[0], "what is shared stays shared"
    with ts.no_grad():
        other[0].weight.fill_(7)
    assert m[0].weight.tolist() == [3.0] * 3


def test_deepcopy_of_tensors():
    base = ts.arange(6)
    a, b = copy.deepcopy([base, base.detach()])
    a.fill_(9)
    assert b.tolist() == [9] * 6, "tensors over one storage share the copy"
    assert base.tolist() == list(range(6))
    leaf = ts.ones(2, requires_grad=True)
    leaf.grad = ts.ones(2)
    twin = copy.deepcopy(leaf)
    assert twin.requires_grad and twin.grad.tolist() == [1.0, 1.0] and twin.grad is not leaf.grad
    with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
        copy.deepcopy(leaf * 2)
    shallow = copy.copy(leaf)
    assert shallow is not leaf and shallow.data_ptr() == leaf.data_ptr()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "int64", "complex64"])
def test_pickle_of_tensors(dtype):
    x = ts.tensor([[1, 0, 1], [0, 1, 1]]).to(getattr(ts, dtype)) if dtype != "complex64" else ts.tensor([1 + 2j])
    y = pickle.loads(pickle.dumps(x))
    assert y.dtype is x.dtype and y.shape == x.shape and y.tolist() == x.tolist()


def test_parameter_shares_memory_and_results_are_plain():
    x = ts.ones(3)
    p = ts.nn.Parameter(x)
    x.fill_(2)
    assert p.tolist() == [2.0] * 3
    assert type(p * 2) is ts.Tensor and (p * 2).requires_grad
    assert repr(p).startswith("Parameter containing:\n")
    assert ts.nn.Parameter().shape == (0,)
    assert not ts.nn.Parameter(ts.ones(1), requires_grad=False).requires_grad
    with pytest.raises(TypeError, match="must be a Tensor"):
        ts.nn.Parameter([1.0])


def test_weights_of_convolutions_change_their_memory_format():
    for lib in (ts, torch):
        utils = lib.nn.utils
        model = lib.nn.Sequential(lib.nn.Conv2d(4, 6, 3), lib.nn.Sequential(lib.nn.ConvTranspose2d(6, 4, 2)))
        x, before = lib.ones(2, 4, 5, 5), [model[0].weight.detach().clone(), model[1][0].weight.detach().clone()]
        assert utils.convert_conv2d_weight_memory_format(model, lib.channels_last) is model
        for layer, values in zip((model[0], model[1][0]), before):
            assert layer.weight.is_contiguous(memory_format=lib.channels_last) and not layer.weight.is_contiguous()
            assert layer.weight.requires_grad and bool((layer.weight == values).all())
        assert model(x).is_contiguous(memory_format=lib.channels_last)
        volumes = lib.nn.Sequential(lib.nn.Conv3d(2, 2, 2), lib.nn.Conv2d(3, 4, 3))
        utils.convert_conv3d_weight_memory_format(volumes, lib.channels_last_3d)
        assert volumes[0].weight.is_contiguous(memory_format=lib.channels_last_3d) and volumes[1].weight.is_contiguous()


def test_the_older_address_of_functional_call():
    from tensorsmith.nn.utils.stateless import functional_call

    assert functional_call is ts.func.functional_call
    layer = ts.nn.Linear(2, 1)
    found = functional_call(layer, {"weight": ts.ones(1, 2), "bias": ts.zeros(1)}, (ts.ones(1, 2),))
    assert found.item() == 2.0
