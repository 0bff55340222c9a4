"""Launches: words, constants, errors, plans; the emitted builtins and the portable functions alike."""

from __future__ import annotations

import ctypes
import os
import random
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
from native_kernels import TEXT, kernel

from tensorsmith.targets.cpu import launch as module
from tensorsmith.targets.cpu.launch import RELEASE_GIL, Given, NativePlan, Recipe, Slot, decode_error, encode_error

Function = Callable[..., "int | None"]


@pytest.fixture(params=["native", "portable"])
def launch(request: pytest.FixtureRequest) -> Function:
    if request.param == "portable":
        return module.launch_portable
    able, reason = module.native_available()
    if not able:
        pytest.skip(reason)
    return module._native()[0]


@pytest.fixture(params=["native", "portable"])
def launch_many(request: pytest.FixtureRequest) -> Function:
    if request.param == "portable":
        return module.launch_many_portable
    able, reason = module.native_available()
    if not able:
        pytest.skip(reason)
    return module._native()[1]


def double_bits(x: float) -> int:
    return struct.unpack("<q", struct.pack("<d", x))[0]


@pytest.mark.parametrize(
    "value, word",
    [
        (0, 0),
        (-1, -1),
        (2**63 - 1, 2**63 - 1),
        (-(2**63), -(2**63)),
        (True, 1),
        (1.5, double_bits(1.5)),
        (-0.0, -(2**63)),
        (float("inf"), double_bits(float("inf"))),
        (float("nan"), double_bits(float("nan"))),
    ],
)
def test_words(launch: Function, value: int | float, word: int) -> None:
    out = (ctypes.c_int64 * 2)()
    recipe = Recipe(kernel("words"), 1, 3)
    assert launch(recipe.address, ctypes.addressof(out), value, 5) is None
    assert list(out) == [word, 5]
    assert launch(recipe.address, ctypes.addressof(out), 6, value) is None
    assert list(out) == [6, word]


def test_subclasses_of_int_and_float(launch: Function) -> None:
    np = pytest.importorskip("numpy")

    class Number(int):
        pass

    out = (ctypes.c_int64 * 2)()
    recipe = Recipe(kernel("words"), 1, 3)
    assert launch(recipe.address, ctypes.addressof(out), Number(7), np.float64(2.5)) is None
    assert list(out) == [7, double_bits(2.5)]


def test_constants(launch: Function) -> None:
    out = (ctypes.c_int64 * 5)()
    constants = [1, -2, 2.5, 2**63 + 1, 2**40]
    recipe = Recipe(kernel("constants"), 1, 1, constants)
    for _ in range(2):  # the recipe is not written
        launch(recipe.address, ctypes.addressof(out))
        assert list(out) == [1, -2, double_bits(2.5), 1 - 2**63, 2**40]
    assert recipe.width == 7
    assert list(recipe.constants) == list(out)


@pytest.mark.parametrize("words", range(0, 12))
def test_any_number_of_words(launch: Function, words: int) -> None:
    """The constants are copied in groups of four around the launch words: all alignments of the two."""
    for extra in range(0, 6):
        width = words + 1 + extra
        store = "\n".join(
            f"%f{i} = getelementptr i64, ptr %a, i64 {i}\n%v{i} = load i64, ptr %f{i}\n"
            f"%t{i} = getelementptr i64, ptr inttoptr (i64 4096 to ptr), i64 {i}\nstore i64 %v{i}, ptr %t{i}"
            for i in range(width)
            if i != words
        )
        out = (ctypes.c_int64 * width)()
        # The output's address stands in the text, so that no word is needed for it.
        text = "define void @f(ptr %a, i32 %c, i32 %n, i32 %w) {\n" + store + "\nret void\n}"
        from tensorsmith.targets.cpu.compiler import compile_functions

        (function,) = compile_functions(text.replace("4096", str(ctypes.addressof(out))), ["f"])
        recipe = Recipe(function, 1, words, [1000 + i for i in range(extra)])
        assert launch(recipe.address, *range(1, words + 1)) is None
        assert list(out) == [*range(1, words + 1), 0, *range(1000, 1000 + extra)]


def test_the_error_code_comes_back(launch: Function) -> None:
    source, target = ctypes.c_int64(3), ctypes.c_int64(0)
    recipe = Recipe(kernel("add_constant"), 1, 2, [10])
    assert launch(recipe.address, ctypes.addressof(source), ctypes.addressof(target)) == 7
    source.value = 4
    assert launch(recipe.address, ctypes.addressof(source), ctypes.addressof(target)) is None
    assert target.value == 14


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ((), TypeError, "needs the address"),
        (("x",), TypeError, "address of a recipe or plan, not <class 'str'>"),
        ((None,), TypeError, "NoneType"),
        ((1.0,), TypeError, "float"),
        ((True,), TypeError, "bool"),
        ((0,), ValueError, "got 0"),
        ((-8,), ValueError, "got -8"),
        ((2**64,), OverflowError, "too large"),
        (("recipe",), TypeError, "takes 3 words, got 0"),
        (("recipe", 1, 2), TypeError, "takes 3 words, got 2"),
        (("recipe", 1, 2, 3, 4), TypeError, "takes 3 words, got 4"),
        (("recipe", "1", 2, 3), TypeError, "word 0 must be an int or a float, not <class 'str'>"),
        (("recipe", 1, None, 3), TypeError, "word 1"),
        (("recipe", 1, 2, b"12345678"), TypeError, "word 2"),
        (("recipe", 1, 2, object()), TypeError, "word 2"),
        (("recipe", 1, 2, 3j), TypeError, "complex"),
        (("recipe", 1, 2, 2**63), OverflowError, "too large"),
        (("recipe", 1, -(2**63) - 1, 3), OverflowError, "too large"),
    ],
)
def test_wrong_arguments(launch: Function, arguments: tuple[object, ...], error: type[Exception], message: str) -> None:
    ran = ctypes.c_int64(0)
    recipe = Recipe(kernel("count"), 3, 3)
    given = [recipe.address if value == "recipe" else value for value in arguments]
    given = [ctypes.addressof(ran) if value == 1 and type(value) is int else value for value in given]
    for _ in range(3):
        with pytest.raises(error, match=message):
            launch(*given)
    assert ran.value == 0
    with pytest.raises(TypeError):
        launch(recipe.address, ctypes.addressof(ran), 2, 3, key=4)


def test_failures_keep_no_references(launch: Function) -> None:
    recipe, wrong = Recipe(kernel("empty"), 1, 1), object()
    before = sys.getrefcount(wrong), sys.getrefcount(object)
    for _ in range(200):
        with pytest.raises(TypeError):
            launch(recipe.address, wrong)
    assert sys.getrefcount(wrong) == before[0]
    assert abs(sys.getrefcount(object) - before[1]) < 50


def test_none_is_not_used_up(launch: Function) -> None:
    recipe = Recipe(kernel("empty"), 1, 0)
    before = sys.getrefcount(None)
    for _ in range(1000):
        launch(recipe.address)
    assert abs(sys.getrefcount(None) - before) < 100


def test_zero_chunks_run_nothing(launch: Function) -> None:
    counter = ctypes.c_int64(0)
    recipe = Recipe(kernel("count"), 0, 1)
    assert launch(recipe.address, ctypes.addressof(counter)) is None
    assert counter.value == 0


def test_recipes_are_checked() -> None:
    for arguments in ((0, 1, 1), (8, -1, 1), (8, 1 << 23, 1), (8, 1, -1), (8, 1, 5000)):
        with pytest.raises(ValueError):
            Recipe(*arguments)
    with pytest.raises(ValueError, match="4096"):
        Recipe(8, 1, 1, [0] * 5000)
    assert "chunks=3" in repr(Recipe(8, 3, 1))


def test_releasing_the_gil(launch: Function) -> None:
    counter = ctypes.c_int64(0)
    ticks = 0
    recipe = Recipe(kernel("slow"), 1, 1, [100_000_000], RELEASE_GIL)
    done = threading.Event()

    def work() -> None:
        launch(recipe.address, ctypes.addressof(counter))
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.is_set():
        ticks += 1
        time.sleep(0.001)
    thread.join()
    assert counter.value == 1
    assert ticks > 3  # this loop went on while the kernel ran


def test_a_plan_runs_in_order(launch_many: Function) -> None:
    """x -> +1 -> temporary -> +20 -> temporary + 8 -> +300 -> y, and a copy of the second temporary to z."""
    x, out = ctypes.c_int64(5), (ctypes.c_int64 * 4)()
    temporary = (ctypes.c_int64 * 2)()
    add = {n: Recipe(kernel("add_constant"), 1, 2, [n]) for n in (0, 1, 20, 300)}
    steps = [
        (add[1], [Given(0), Slot(0)]),
        (add[20], [Slot(0), Slot(0, 8)]),
        (add[300], [Slot(0, 8), Given(1)]),
        (add[0], [Slot(1, -16), Given(1, 24)]),
    ]
    base = ctypes.addressof(temporary)
    plan = NativePlan(steps, words=2, slots=[base, base + 24])
    assert launch_many(plan.address, ctypes.addressof(x), ctypes.addressof(out)) is None
    assert list(temporary) == [6, 26]
    assert list(out) == [326, 0, 0, 26]
    other = (ctypes.c_int64 * 2)()
    plan.set_slot(0, ctypes.addressof(other))
    plan.set_slot(1, ctypes.addressof(other) + 24)
    assert plan.slots == (ctypes.addressof(other), ctypes.addressof(other) + 24)
    x.value = 100
    assert launch_many(plan.address, ctypes.addressof(x), ctypes.addressof(out)) is None
    assert list(other) == [101, 121] and list(temporary) == [6, 26] and out[0] == 421
    with pytest.raises(IndexError):
        plan.set_slot(2, 0)


def test_a_plan_stops_at_the_first_error(launch_many: Function) -> None:
    cells = (ctypes.c_int64 * 4)(10, 0, 0, 99)
    add = Recipe(kernel("add_constant"), 1, 2, [1])
    chain = [(add, [Given(0, 8 * i), Given(0, 8 * i + 8)]) for i in range(3)]
    plan = NativePlan(chain, words=1)
    value = launch_many(plan.address, ctypes.addressof(cells))
    assert value == encode_error(2, 7)
    assert decode_error(value) == (2, 7)
    cells[:] = (12, 0, 0, 99)  # now the first step fails: nothing after it runs
    value = launch_many(plan.address, ctypes.addressof(cells))
    assert value is not None and decode_error(value) == (0, 7)
    assert list(cells) == [12, 13, 0, 99]


def test_plan_words_and_constants(launch_many: Function) -> None:
    out = (ctypes.c_int64 * 2)()
    plan = NativePlan([(Recipe(kernel("words"), 1, 3), [Given(0), Given(1), Slot(0)])], words=2, slots=[1.25])
    assert launch_many(plan.address, ctypes.addressof(out), -2.5) is None
    assert list(out) == [double_bits(-2.5), double_bits(1.25)]
    for arguments in ((), (1,), (1, 2, 3), (1, "x")):
        with pytest.raises(TypeError):
            launch_many(plan.address, *arguments)
    nothing = NativePlan([], 0)
    assert launch_many(nothing.address) is None


@pytest.mark.parametrize("flags", [0, RELEASE_GIL])
def test_parallel_steps(launch_many: Function, flags: int) -> None:
    generator = random.Random(3)
    counters = (ctypes.c_int64 * 2)()
    chunks = [generator.randrange(0, 20) for _ in range(50)]
    steps = [(Recipe(kernel("count"), n, 1), [Given(0, 8 * (i % 2))]) for i, n in enumerate(chunks)]
    plan = NativePlan(steps, words=1, flags=flags)
    for _ in range(20):
        assert launch_many(plan.address, ctypes.addressof(counters)) is None
    assert list(counters) == [20 * sum(chunks[0::2]), 20 * sum(chunks[1::2])]


def test_plans_are_checked() -> None:
    recipe = Recipe(kernel("count"), 1, 1)
    for sources in ([], [Given(0), Given(0)], [Given(1)], [Given(-1)], [Slot(1)], [Given(0, 1 << 50)]):
        with pytest.raises(ValueError, match="step 0"):
            NativePlan([(recipe, sources)], words=1, slots=[0])
    with pytest.raises(ValueError):
        NativePlan([], words=-1)


def test_the_plan_keeps_its_recipes() -> None:
    counter = ctypes.c_int64(0)
    plan = NativePlan([(Recipe(kernel("count"), 2, 1), [Given(0)])], words=1)
    junk = [Recipe(kernel("empty"), 0, 1) for _ in range(100)]
    module.launch_many(plan.address, ctypes.addressof(counter))
    assert counter.value == 2 and len(junk) == 100


def test_the_environment_chooses_the_portable_functions() -> None:
    script = """
from tensorsmith.targets.cpu import launch
assert launch.launch is launch.launch_portable and launch.launch_many is launch.launch_many_portable
print(launch.native_available()[1])
"""
    environment = os.environ | {"TENSORSMITH_LAUNCH": "portable"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert "portable" in done.stdout
    with pytest.raises(AttributeError):
        module.no_such_name  # noqa: B018
    assert TEXT
