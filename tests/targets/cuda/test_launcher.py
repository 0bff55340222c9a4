"""The native function that launches a lowered step, driven against functions of Python in place of the driver's."""

from __future__ import annotations

import ctypes
import struct

import pytest

from tensorsmith.targets.cpu.launch import Given, NativePlan, decode_error, launch, launch_many
from tensorsmith.targets.cuda import devices, driver, launcher, modules
from tensorsmith.targets.cuda.devices import Cell, Device
from tensorsmith.targets.cuda.kernel import Constant, ErrorWord, Launch, Lowered, TensorMap, Word
from tensorsmith.targets.cuda.launcher_text import DRIVER_CODE

pytest.importorskip("cuda.bindings")  # for the numbers of tensor maps' dtypes

P, U32, U64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
STATUS = ctypes.c_int32


class FakeDriver:
    """Notes what it is called with. `statuses` are given in turn by launches, then 0."""

    def __init__(self) -> None:
        self.context: int | None = None
        self.contexts: list[int | None] = []
        self.launches: list[dict] = []
        self.maps: list[dict] = []
        self.synchronized: list[int | None] = []
        self.statuses: list[int] = []
        self.parameters = 0  # how many a launch takes
        self.at_launch = lambda: None
        make = {
            Cell.GET_CONTEXT: (self.get_context, (ctypes.POINTER(P),)),
            Cell.SET_CONTEXT: (self.set_context, (P,)),
            Cell.LAUNCH: (self.launch, (P, *[U32] * 7, P, ctypes.POINTER(P), P)),
            Cell.LAUNCH_EXTENDED: (self.launch_extended, (P, P, ctypes.POINTER(P), P)),
            Cell.ENCODE_TENSOR_MAP: (
                self.encode,
                (P, U32, U32, P, *[ctypes.POINTER(U64)] * 2, *[ctypes.POINTER(U32)] * 2, *[U32] * 4),
            ),
            Cell.SYNCHRONIZE_STREAM: (self.synchronize, (P,)),
        }
        self.functions = {cell: ctypes.PYFUNCTYPE(STATUS, *types)(function) for cell, (function, types) in make.items()}

    def get_context(self, to) -> int:
        to[0] = self.context
        return 0

    def set_context(self, context) -> int:
        self.context = context
        self.contexts.append(context)
        return 0

    def values(self, parameters) -> list[bytes]:
        return [ctypes.string_at(parameters[i], 8) for i in range(self.parameters)]

    def launch(self, function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra) -> int:
        return self.note(
            function=function, grid=(gx, gy, gz), block=(bx, by, bz), shared=shared, stream=stream, extra=extra,
            parameters=parameters,
        )

    def launch_extended(self, configuration, function, parameters, extra) -> int:
        *geometry, shared, padding, stream, attributes, count = struct.unpack("<8IQQI", ctypes.string_at(configuration, 52))
        assert padding == 0
        assert count == 1
        kind, _, *cluster = struct.unpack("<5I", ctypes.string_at(attributes, 20))
        assert kind == 4
        return self.note(
            function=function, grid=tuple(geometry[:3]), block=tuple(geometry[3:]), shared=shared, stream=stream or None,
            extra=extra, parameters=parameters, cluster=tuple(cluster),
        )  # fmt: skip

    def note(self, parameters, **what) -> int:
        self.at_launch()
        addresses = [parameters[i] for i in range(self.parameters)]
        self.launches.append({**what, "context": self.context, "addresses": addresses, "values": self.values(parameters)})
        return self.statuses.pop(0) if self.statuses else 0

    def encode(self, to, dtype, rank, address, shape, strides, box, steps, interleave, swizzle, promotion, fill) -> int:
        assert to % 64 == 0
        self.maps.append(
            {
                "dtype": dtype, "address": address, "shape": shape[:rank], "strides": strides[: rank - 1], "box": box[:rank],
                "steps": steps[:rank], "rest": (interleave, swizzle, promotion, fill),
            }
        )  # fmt: skip
        ctypes.memset(to, len(self.maps), 128)
        return 0

    def synchronize(self, stream) -> int:
        self.synchronized.append(stream)
        return 0


CONTEXT = 0x7000


@pytest.fixture
def fake(monkeypatch):
    found = FakeDriver()
    device = Device(0, 0)
    device.context = device.words[Cell.CONTEXT] = CONTEXT
    for cell, function in found.functions.items():
        device.words[cell] = ctypes.cast(function, P).value
    found.device = device
    monkeypatch.setattr(devices, "use", lambda index: device)
    monkeypatch.setattr(devices, "properties", lambda index: devices.DeviceProperties())
    monkeypatch.setattr(modules, "compile_many", lambda texts, architecture: None)
    monkeypatch.setattr(modules, "function", lambda source, name, index, shared: int(source))
    bindings = pytest.importorskip("cuda.bindings.driver")
    monkeypatch.setattr(driver, "bindings", lambda: bindings)
    return found


def word(value: int) -> bytes:
    return struct.pack("<q", value)


def test_geometry_and_arguments(fake):
    arguments = (Word(2), Constant((5,)), Word(0), Constant((-1, 2.5, 1 << 63)), Word(1))
    lowered = Lowered("step", (Launch("77", "k", (3, 4, 5), (32, 2, 1), arguments, 1000),), 2, (64,))
    fake.parameters = len(arguments)
    recipe = launcher.recipe(lowered, 0)
    fake.device.words[Cell.STREAM] = 0x55
    assert launch(recipe.address, 0x1000, 2.5, 0x3000) is None
    (seen,) = fake.launches
    assert (seen["function"], seen["grid"], seen["block"], seen["shared"]) == (77, (3, 4, 5), (32, 2, 1), 1000)
    assert (seen["stream"], seen["context"], seen["extra"]) == (0x55, CONTEXT, None)
    assert seen["values"] == [word(0x3000), word(5), word(0x1000), word(-1), struct.pack("<d", 2.5)]
    assert ctypes.string_at(seen["addresses"][3], 24) == word(-1) + struct.pack("<dQ", 2.5, 1 << 63)


def test_launches_in_order_and_empty_grids(fake):
    launches = [Launch(str(n), "k", (n, 1, 1), (32, 1, 1), (Constant((n,)),)) for n in (1, 0, 2, 3)]
    fake.parameters = 1
    recipe = launcher.recipe(Lowered("step", tuple(launches), 0), 0)
    assert launch(recipe.address) is None
    assert [(seen["function"], seen["values"]) for seen in fake.launches] == [(n, [word(n)]) for n in (1, 2, 3)]
    nothing = launcher.recipe(Lowered("nothing", (), 1), 0)
    assert launch(nothing.address, 0x1000) is None
    assert len(fake.launches) == 3


def test_clusters(fake):
    lowered = Lowered("step", (Launch("9", "k", (8, 1, 2), (128, 1, 1), (Word(0),), 70000, (2, 1, 1)),), 1)
    fake.parameters = 1
    fake.device.words[Cell.STREAM] = 0x66
    recipe = launcher.recipe(lowered, 0)
    assert launch(recipe.address, 0x4000) is None
    (seen,) = fake.launches
    assert (seen["function"], seen["grid"], seen["block"], seen["shared"]) == (9, (8, 1, 2), (128, 1, 1), 70000)
    assert (seen["cluster"], seen["stream"], seen["values"]) == ((2, 1, 1), 0x66, [word(0x4000)])


@pytest.mark.parametrize("before", [None, CONTEXT, 0x8000])
def test_context_is_set_and_put_back(fake, before):
    recipe = launcher.recipe(Lowered("step", (Launch("1", "k", (1, 1, 1), (1, 1, 1), ()),), 0), 0)
    fake.context = before
    assert launch(recipe.address) is None
    assert fake.launches[0]["context"] == CONTEXT
    assert fake.contexts == {None: [CONTEXT], CONTEXT: [], 0x8000: [CONTEXT, 0x8000]}[before]


def test_tensor_maps_are_encoded_where_addresses_change(fake):
    a = TensorMap(0, "BFLOAT16", (64, 32), (128,), (64, 8), 128, 256)
    b = TensorMap(1, "FLOAT32", (7, 6, 5), (32, 192), (4, 2, 1), 0)
    one, two = (Launch(source, "k", (1, 1, 1), (1, 1, 1), (b, Word(0), a)) for source in ("1", "2"))
    fake.parameters = 3
    recipe = launcher.recipe(Lowered("step", (one, two), 2), 0)
    assert launch(recipe.address, 0x10000, 0x20000) is None
    assert fake.maps[1:] == [
        {
            "dtype": 9, "address": 0x10100, "shape": [64, 32], "strides": [128], "box": [64, 8], "steps": [1, 1],
            "rest": (0, 3, 2, 0),
        }
    ]  # fmt: skip
    assert fake.maps[0] == {
        "dtype": 7, "address": 0x20000, "shape": [7, 6, 5], "strides": [32, 192], "box": [4, 2, 1], "steps": [1, 1, 1],
        "rest": (0, 0, 2, 0),
    }  # fmt: skip
    assert [seen["values"] for seen in fake.launches] == [[b"\1" * 8, word(0x10000), b"\2" * 8]] * 2
    assert launch(recipe.address, 0x10000, 0x20000) is None
    assert len(fake.maps) == 2
    assert launch(recipe.address, 0x10000, 0x30000) is None
    assert [seen["address"] for seen in fake.maps[2:]] == [0x30000]
    assert fake.launches[-1]["values"] == [b"\3" * 8, word(0x10000), b"\2" * 8]


def test_errors_of_the_driver_name_the_kernel(fake):
    launches = tuple(Launch(str(n), f"kernel{n}", (1, 1, 1), (1, 1, 1), ()) for n in range(3))
    recipe = launcher.recipe(Lowered("softmax", launches, 0), 0)
    fake.statuses = [0, 701]
    code = launch(recipe.address)
    assert code <= DRIVER_CODE
    assert len(fake.launches) == 2
    error = launcher.failed(recipe, code)
    assert isinstance(error, driver.CudaError)
    assert error.code == 701
    assert "kernel1 of softmax" in str(error)


def test_in_a_plan(fake):
    step = launcher.recipe(Lowered("a", (Launch("1", "k", (1, 1, 1), (1, 1, 1), (Word(0),)),), 1), 0)
    other = launcher.recipe(Lowered("b", (Launch("2", "k", (1, 1, 1), (1, 1, 1), (Word(1),)),), 2), 0)
    plan = NativePlan([(step, [Given(0)]), (other, [Given(1), Given(0, 64)])], 2)
    fake.parameters = 1
    assert launch_many(plan.address, 0x1000, 0x2000) is None
    assert [seen["values"] for seen in fake.launches] == [[word(0x1000)], [word(0x1040)]]
    fake.statuses = [0, 1]
    step_number, code = decode_error(launch_many(plan.address, 0x1000, 0x2000))
    assert (step_number, launcher.failed(other, code).code) == (1, 1)


class Slot:
    """An error word of this test's."""

    def __init__(self, index, name, failure) -> None:
        self.memory = ctypes.c_int64(0)
        self.host = self.device = ctypes.addressof(self.memory)
        self.exception = failure

    def retire(self) -> None:
        pass


def test_debugging_waits_and_reads_the_error_word(fake, monkeypatch):
    monkeypatch.setattr(launcher, "ErrorSlot", Slot)
    launches = tuple(Launch(str(n), "k", (1, 1, 1), (1, 1, 1), (ErrorWord(),)) for n in (1, 2))
    recipe = launcher.recipe(Lowered("gather", launches, 0), 0, lambda code: IndexError(f"code {code}"))
    slot = recipe.keep.slot
    fake.parameters = 1
    fake.at_launch = lambda: setattr(slot.memory, "value", 7)
    assert launch(recipe.address) is None  # nobody waits
    assert (len(fake.launches), fake.synchronized) == (2, [])
    assert fake.launches[0]["values"] == [word(slot.device)]
    fake.device.words[Cell.DEBUG] = 1
    fake.device.words[Cell.STREAM] = 0x55
    code = launch(recipe.address)
    assert (len(fake.launches), fake.synchronized, slot.memory.value) == (3, [0x55], 0)
    assert str(launcher.failed(recipe, code)) == "code 7"


def test_many_words(fake):
    fake.parameters = 1
    for given in (31, 32, 100, 2000):
        recipe = launcher.recipe(Lowered("wide", (Launch("1", "k", (1, 1, 1), (1, 1, 1), (Word(given - 1),)),), given), 0)
        assert launch(recipe.address, *range(given)) is None
        assert fake.launches[-1]["values"] == [word(given - 1)]


def test_a_word_that_no_run_gives(fake):
    with pytest.raises(ValueError, match="takes word 2, but a run gives 2"):
        launcher.recipe(Lowered("a", (Launch("1", "k", (1, 1, 1), (1, 1, 1), (Word(2),)),), 2), 0)
