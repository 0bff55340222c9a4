"""Containers against PyTorch's."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch

import tensorsmith as ts


def both(run):
    texts = []
    for lib in (torch, ts):
        try:
            found = run(lib)
        except Exception as error:  # noqa: BLE001 - the kind of error is compared
            found = type(error).__name__
        texts.append(str(found).replace("torch", "tensorsmith"))
    assert texts[1] == texts[0]


def sequential(lib):
    nn = lib.nn
    return nn.Sequential(OrderedDict(a=nn.ReLU(), b=nn.Tanh(), c=nn.Sigmoid()))


@pytest.mark.parametrize(
    "action",
    [
        lambda s, lib: s[1],
        lambda s, lib: s[-1],
        lambda s, lib: s[1:],
        lambda s, lib: s[9],
        lambda s, lib: len(s),
        lambda s, lib: [type(m).__name__ for m in s],
        lambda s, lib: s.__setitem__(0, lib.nn.ELU()) or s,
        lambda s, lib: s.__delitem__(1) or s,
        lambda s, lib: s.append(lib.nn.ELU()),
        lambda s, lib: s.extend([lib.nn.ELU(), lib.nn.GELU()]),
        lambda s, lib: lib.nn.Sequential(*s).insert(-1, lib.nn.ELU()),
        lambda s, lib: lib.nn.Sequential(*s).insert(7, lib.nn.ELU()),
        lambda s, lib: (s.pop(0), s),
        lambda s, lib: lib.nn.Sequential(*s) + lib.nn.Sequential(lib.nn.ELU()),
        lambda s, lib: s(lib.tensor([0.0])).tolist(),
    ],
)
def test_sequential(action):
    both(lambda lib: action(sequential(lib), lib))


@pytest.mark.parametrize(
    "action",
    [
        lambda s, lib: s,
        lambda s, lib: s[0],
        lambda s, lib: s[-2:],
        lambda s, lib: s[9],
        lambda s, lib: s.append(lib.nn.ELU()),
        lambda s, lib: s.insert(1, lib.nn.ELU()) or s,
        lambda s, lib: s.__delitem__(0) or s,
        lambda s, lib: s.__delitem__(slice(0, 2)) or s,
        lambda s, lib: s + [lib.nn.ELU()],
        lambda s, lib: s.__iadd__([lib.nn.ELU()]),
        lambda s, lib: s.__setitem__(-1, lib.nn.ELU()) or s,
        lambda s, lib: (s.pop(1), s),
        lambda s, lib: s.append(3),
        lambda s, lib: s.extend(3),
        lambda s, lib: s(1),
        lambda s, lib: lib.nn.ModuleList(),
    ],
)
def test_module_list(action):
    def run(lib):
        nn = lib.nn
        return action(nn.ModuleList([nn.ReLU(), nn.ReLU(), nn.Sequential(nn.Tanh()), nn.Tanh()]), lib)

    both(run)


@pytest.mark.parametrize(
    "action",
    [
        lambda s, lib: s,
        lambda s, lib: (list(s), list(s.keys()), len(s), "a" in s, "z" in s),
        lambda s, lib: s["z"],
        lambda s, lib: s.update({"z": lib.nn.ELU()}) or s,
        lambda s, lib: s.update([("z", lib.nn.ELU())]) or s,
        lambda s, lib: (s.pop("a"), s),
        lambda s, lib: s.__delitem__("a") or s,
        lambda s, lib: s.clear() or s,
        lambda s, lib: s.update(3),
        lambda s, lib: s.__setitem__("keys", lib.nn.ELU()),
    ],
)
def test_module_dict(action):
    both(lambda lib: action(lib.nn.ModuleDict({"a": lib.nn.ReLU(), "b": lib.nn.Tanh()}), lib))


def test_parameter_list_and_dict():
    def run(lib):
        values = lib.nn.ParameterList([lib.ones(2), lib.nn.Parameter(lib.zeros(1)), "text"])
        values.append(lib.ones(3))
        values[0] = lib.zeros(2)
        table = lib.nn.ParameterDict({"w": lib.ones(2)})
        table["b"] = lib.zeros(1)
        m = lib.nn.Module()
        m.values, m.table = values, table
        return (
            [name for name, _ in m.named_parameters()],
            [p.tolist() for p in m.parameters()],
            len(values),
            values[2],
            list(table),
            "w" in table,
            table.get("q", 4),
            type(values[1:]).__name__,
        )

    both(run)
    assert "Parameter containing: [tensorsmith.float32 of size 2]" in repr(ts.nn.ParameterList([ts.ones(2)]))
    with pytest.raises(TypeError):
        ts.nn.ParameterDict({3: ts.ones(1)})


def test_optimiser_sees_what_containers_hold():
    m = ts.nn.Module()
    m.layers = ts.nn.ModuleList([ts.nn.LayerNorm(2), ts.nn.LayerNorm(2)])
    assert len(list(m.parameters())) == 4


def test_parameters_by_name_as_a_dictionary():
    results = []
    for lib in (ts, torch):
        held = lib.nn.ParameterDict({"a": lib.nn.Parameter(lib.ones(2))})
        first = held["a"]
        assert held.setdefault("a") is first and held.setdefault("b", lib.zeros(1)).requires_grad
        copied = held.copy()
        assert type(copied).__name__ == "ParameterDict" and copied["a"] is first
        name, value = held.popitem()
        made = held.fromkeys(["x", "y"], 3.0)
        held.clear()
        results.append((name, tuple(value.shape), [*copied], [*made], made["y"], len(held), len([*copied.parameters()])))
        with pytest.raises(KeyError):
            held.popitem()
    assert results[0] == results[1]


def test_sequences_joined_in_place():
    for lib in (ts, torch):
        net = whole = lib.nn.Sequential(lib.nn.ReLU())
        net += lib.nn.Sequential(lib.nn.Tanh(), lib.nn.ReLU())
        assert net is whole and [type(m).__name__ for m in net] == ["ReLU", "Tanh", "ReLU"]
        with pytest.raises(ValueError, match="supports only objects of Sequential"):
            net += [lib.nn.ReLU()]
        shared = lib.nn.ModuleList([whole[0], whole[0]])
        assert (len([*shared.modules()]), len([*shared.modules(remove_duplicate=False)])) == (2, 3)
