"""save and load: round trips, other libraries' files, hostile files, interruptions."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections import OrderedDict

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

import tensorsmith as ts
from tensorsmith.data.checkpoint_header import CODES, CheckpointError


def round_trip(obj):
    buffer = io.BytesIO()
    ts.save(obj, buffer)
    buffer.seek(0)
    return ts.load(buffer)


def same(a, b):
    assert type(a) is type(b)
    if isinstance(a, ts.Tensor):
        assert a.dtype is b.dtype and a.shape == b.shape and a.requires_grad == b.requires_grad
        assert a.tolist() == b.tolist()
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y)
    else:
        assert a == b or (a != a and b != b)


@pytest.mark.parametrize(
    "obj",
    [
        3,
        "text \ud800 \u00e9",
        None,
        [True, 1, 1.5, float("nan"), float("inf"), -0.0, 10**30],
        {},
        {"a": {"b": [1, (2, {3: "x", "": None})]}, -1: OrderedDict(z=1, y=2), "tensor": {"tensor": {"name": "a"}}},
        ts.Size([2, 3]),
        {"__metadata__": ts.ones(1), "a.b": ts.zeros(1), "a": {"b": ts.full((1,), 2.0)}},
        [ts.ones(2, requires_grad=True), ts.nn.Parameter(ts.zeros(2)), ts.nn.Parameter(ts.ones(1), False)],
        (ts.zeros(0, 3), ts.tensor(4), ts.tensor(2.5)),
    ],
)
def test_round_trip(obj):
    same(round_trip(obj), obj)


@pytest.mark.parametrize("dtype", [*CODES.values(), ts.complex128], ids=str)
def test_every_dtype(dtype, tmp_path):
    array = np.array([[0, 1, 2], [3, 4, 1]]).astype(dtype.numpy)
    tensor = ts.from_numpy(array)
    same(round_trip({"x": tensor})["x"], tensor)


def test_strided_and_shared_tensors():
    base = ts.arange(12).reshape(3, 4)
    obj = {"t": base.t(), "part": base[1:, ::2], "wide": ts.ones(1, 3).expand(2, 3), "again": base}
    loaded = round_trip(obj)
    same(loaded, {k: v.contiguous() for k, v in obj.items()})
    loaded["again"].fill_(0)
    assert loaded["t"].tolist() == base.t().tolist(), "loaded tensors share no memory"


def test_training_goes_on_after_loading(tmp_path):
    def fresh():
        model = ts.nn.Sequential(ts.nn.LayerNorm(3), ts.nn.Tanh())
        return model, ts.optim.AdamW(model.parameters(), lr=0.1, amsgrad=True)

    def step(model, optimizer, number):
        optimizer.zero_grad()
        (model(ts.tensor([[1.0, 2.0, float(number)]])) ** 2).sum().backward()
        optimizer.step()

    model, optimizer = fresh()
    for number in range(3):
        step(model, optimizer, number)
    path = tmp_path / "checkpoint.safetensors"
    ts.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, path)
    other, other_optimizer = fresh()
    loaded = ts.load(path)
    other.load_state_dict(loaded["model"])
    other_optimizer.load_state_dict(loaded["optimizer"])
    assert loaded["epoch"] == 3
    for number in range(3):
        step(model, optimizer, number)
        step(other, other_optimizer, number)
    for p, q in zip(model.parameters(), other.parameters()):
        assert p.tolist() == q.tolist()


def test_the_library_reads_ours(tmp_path):
    path = str(tmp_path / "x.safetensors")
    ts.save({"a": {"w": ts.arange(6).reshape(2, 3)}, "b": [ts.ones(2, dtype=ts.bfloat16)], "n": 3}, path)
    found = safetensors.torch.load_file(path)
    assert set(found) == {"a.w", "b.0"}
    assert found["a.w"].tolist() == [[0, 1, 2], [3, 4, 5]] and found["b.0"].dtype is torch.bfloat16


def test_we_read_the_librarys(tmp_path):
    path = str(tmp_path / "x.safetensors")
    tensors = {"w": torch.randn(2, 3), "b": torch.ones(2, dtype=torch.bfloat16), "t": torch.tensor(True)}
    tensors["e"] = torch.zeros(0, 2)
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    found = ts.load(path)
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        assert found[name].tolist() == tensor.tolist() and tuple(found[name].shape) == tuple(tensor.shape)


@pytest.mark.parametrize(
    ("obj", "path"),
    [
        ({"model": {"x": lambda: 0}}, r"obj\['model'\]\['x'\]: it is a lambda"),
        ([1, (2, {3: {1, 2}})], r"obj\[1\]\[1\]\[3\]: it is a set"),
        ({"a": np.ones(2)}, r"obj\['a'\]: it is a numpy.ndarray; use tensorsmith.from_numpy"),
        (np.float64(2), r"obj: it is a numpy.float64"),
        ({"m": ts.nn.ReLU()}, r"obj\['m'\].*save its state_dict"),
        ({(1, 2): 3}, r"key \(1, 2\) is a tuple"),
        ({True: 3}, r"key True is a bool"),
    ],
)
def test_what_cannot_be_saved_is_named(obj, path, tmp_path):
    target = tmp_path / "x.safetensors"
    target.write_bytes(b"before")
    with pytest.raises(TypeError, match=path):
        ts.save(obj, target)
    assert target.read_bytes() == b"before" and os.listdir(tmp_path) == ["x.safetensors"]


def test_loops_and_depth():
    loop = []
    loop.append(loop)
    with pytest.raises(ValueError, match=r"obj\[0\]: it contains itself"):
        round_trip(loop)
    deep = 1
    for _ in range(300):
        deep = [deep]
    with pytest.raises(ValueError, match="nested more than"):
        round_trip(deep)


def test_paths_that_do_not_exist(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        ts.load(tmp_path / "nowhere.safetensors")
    with pytest.raises(FileNotFoundError, match="does not exist; create it first"):
        ts.save(1, tmp_path / "missing" / "x")
    with pytest.raises(TypeError, match="path or a binary file"):
        ts.save(1, 5)
    with pytest.raises(TypeError, match="path or a binary file"):
        ts.load(5)


# ------------------------------------------------------------------------------------------------------ hostile files


def file_of(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(shape=(2,), offsets=(0, 8), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


HOSTILE = {
    "empty": b"",
    "seven bytes": b"1234567",
    "huge header": file_of({}, length=1 << 62),
    "header beyond the end": file_of({}, length=3),
    "header cut off": file_of(b'{"a": '),
    "text": b"hello, this is no checkpoint at all",
    "pickle": b"\x80\x04\x95" + b"x" * 100,
    "not utf-8": file_of(b'{"\xff": 1}'),
    "a list": file_of(b"[1]"),
    "nan": file_of(b'{"a": NaN}'),
    "deep": file_of(b'{"a":' * 200_000),
    "deep lists": file_of(b'{"a":' + b"[" * 200_000),
    "huge number": file_of(b'{"a": ' + b"9" * 10_000 + b"}"),
    "duplicate": file_of((b'{"a":%b,"a":%b}' % ((json.dumps(entry()).encode(),) * 2)), b"x" * 8),
    "no entry": file_of({"a": 3}),
    "entry without offsets": file_of({"a": {"dtype": "F32", "shape": [1]}}),
    "entry with more": file_of({"a": {**entry(), "x": 1}}, b"x" * 8),
    "unknown dtype": file_of({"a": entry(dtype="F8_E4M3")}, b"x" * 8),
    "dtype no string": file_of({"a": entry(dtype=["F32"])}, b"x" * 8),
    "negative shape": file_of({"a": entry((-2, -1))}, b"x" * 8),
    "negative offset": file_of({"a": entry(offsets=(-8, 0))}, b"x" * 8),
    "boolean shape": file_of({"a": entry((True, 2))}, b"x" * 8),
    "float shape": file_of({"a": entry((2.0,))}, b"x" * 8),
    "shape no list": file_of({"a": {**entry(), "shape": 2}}, b"x" * 8),
    "overflowing shape": file_of({"a": entry((1 << 62, 4))}, b"x" * 8),
    "overflow behind a zero": file_of({"a": entry((0, 1 << 62, 1 << 62), (0, 0))}),
    "many axes": file_of({"a": entry((1,) * 70, (0, 4))}, b"x" * 4),
    "offsets swapped": file_of({"a": entry(offsets=(8, 0))}, b"x" * 8),
    "three offsets": file_of({"a": entry(offsets=(0, 8, 9))}, b"x" * 8),
    "wrong size": file_of({"a": entry((3,))}, b"x" * 8),
    "beyond the data": file_of({"a": entry((100,), (0, 400))}, b"x" * 8),
    "truncated": file_of({"a": entry()}, b"x" * 7),
    "too long": file_of({"a": entry()}, b"x" * 9),
    "overlap": file_of({"a": entry(), "b": entry(offsets=(4, 12))}, b"x" * 12),
    "same bytes twice": file_of({"a": entry(), "b": entry()}, b"x" * 8),
    "gap": file_of({"a": entry(), "b": entry(offsets=(12, 20))}, b"x" * 20),
    "metadata no object": file_of({"__metadata__": 3}),
    "metadata of numbers": file_of({"__metadata__": {"a": 3}}),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_refused(case, tmp_path):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(HOSTILE[case])
    with pytest.raises(CheckpointError, match=r"bad\.safetensors: ") as caught:
        ts.load(path)
    assert len(str(caught.value)) < 600


STRICTER = {"duplicate", "entry with more", "many axes", "unknown dtype"}  # the library takes these


@pytest.mark.parametrize("case", sorted(HOSTILE.keys() - STRICTER))
def test_the_library_refuses_them_too(case):
    with pytest.raises((safetensors.SafetensorError, ValueError, OverflowError, KeyError)):
        safetensors.numpy.load(HOSTILE[case])


STRUCTURES = {
    "not json": "{",
    "deep": "[" * 100_000,
    "no version": "{}",
    "bare value": '{"version": 1, "value": []}',
    "unknown kind": '{"version": 1, "value": {"pickle": "x"}}',
    "two keys": '{"version": 1, "value": {"list": [], "tuple": []}}',
    "unknown tensor": '{"version": 1, "value": {"tensor": {"name": "b"}}}',
    "unhashable tensor": '{"version": 1, "value": {"tensor": {"name": ["a"]}}}',
    "bad pairs": '{"version": 1, "value": {"dict": [1]}}',
    "unhashable key": '{"version": 1, "value": {"dict": [[[], 1]]}}',
    "twice": '{"version": 1, "value": {"dict": [["a", 1], ["a", 1]]}}',
    "bad float": '{"version": 1, "value": {"float": "__import__(1)"}}',
    "bad size": '{"version": 1, "value": {"size": ["a"]}}',
    "deep lists": '{"version": 1, "value": ' + '{"list": [' * 250 + "]}" * 250 + "}",
}


@pytest.mark.parametrize("case", STRUCTURES)
def test_hostile_structures_are_refused(case, tmp_path):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(file_of({"__metadata__": {"tensorsmith": STRUCTURES[case]}, "a": entry()}, b"x" * 8))
    with pytest.raises(CheckpointError, match=r"bad\.safetensors: the structure in its metadata"):
        ts.load(path)


def test_newer_format_says_so(tmp_path):
    path = tmp_path / "new.safetensors"
    path.write_bytes(file_of({"__metadata__": {"tensorsmith": '{"version": 2, "value": 1}'}}))
    with pytest.raises(CheckpointError, match="update tensorsmith"):
        ts.load(path)


def test_every_truncation_is_refused(tmp_path):
    buffer = io.BytesIO()
    ts.save({"a": ts.arange(3), "b": [ts.ones(2, dtype=ts.float16), "x"]}, buffer)
    whole = buffer.getvalue()
    for length in range(len(whole)):
        with pytest.raises(CheckpointError):
            ts.load(io.BytesIO(whole[:length]))


def test_changed_bytes_never_crash():
    buffer = io.BytesIO()
    ts.save({"a": ts.arange(3), "b": ts.tensor([True, False])}, buffer)
    whole = buffer.getvalue()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(400):
        damaged = bytearray(whole)
        damaged[rng.integers(0, len(whole))] = rng.integers(0, 256)
        try:
            ts.load(io.BytesIO(bytes(damaged)))
        except CheckpointError:
            refused += 1
    assert refused > 200


def test_bools_are_0_or_1(tmp_path):
    path = tmp_path / "b.safetensors"
    path.write_bytes(file_of({"a": entry((3,), (0, 3), "BOOL")}, b"\x00\x01\xfe"))
    found = ts.load(path)["a"]
    assert found.tolist() == [False, True, True] and found.to(ts.int64).tolist() == [0, 1, 1]


# ------------------------------------------------------------------------------------------------------ interruptions


@pytest.mark.parametrize("where", ["write", "fsync", "replace"])
def test_an_interruption_leaves_the_old_file(where, tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    ts.save({"a": ts.ones(2)}, path)

    def interrupt(*args):
        raise KeyboardInterrupt

    if where == "write":
        monkeypatch.setattr("tensorsmith.data.serialization._bytes_of", interrupt)
    else:
        monkeypatch.setattr(os, where, interrupt)
    with pytest.raises(KeyboardInterrupt):
        ts.save({"a": ts.zeros(5)}, path)
    assert os.listdir(tmp_path) == ["x.safetensors"]
    assert ts.load(path)["a"].tolist() == [1.0, 1.0]


def test_a_link_stays_a_link(tmp_path):
    ts.save(1, tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    ts.save(2, tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and ts.load(tmp_path / "real") == 2


KILLED = """
import sys
import tensorsmith as ts
x = [ts.full((200_000,), float(i)) for i in range(3)]
print("ready", flush=True)
for number in range(10**6):
    ts.save({"number": number, "x": x}, sys.argv[1])
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="SIGKILL is POSIX's")
def test_a_killed_process_leaves_a_whole_file(tmp_path):
    path = tmp_path / "x.safetensors"
    for delay in (0.02, 0.035, 0.05):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "ready\n"
        while not path.exists():
            time.sleep(0.005)
        time.sleep(delay)
        process.kill()
        process.wait()
        loaded = ts.load(path)
        assert [t[0].item() for t in loaded["x"]] == [0.0, 1.0, 2.0]
