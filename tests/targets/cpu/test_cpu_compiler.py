"""Text to callable code: results, deduplication, errors, threads."""

from __future__ import annotations

import ctypes
import threading

import pytest

from tensorsmith.targets.cpu.compiler import (
    CompilationError,
    assembly,
    compile_functions,
    emit_object,
    object_key,
    statistics,
)
from tensorsmith.targets.cpu.machine import machine, select

INT = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


def adder(n: int) -> str:
    return f"define i64 @add(i64 %x) {{\n %y = add i64 %x, {n}\n ret i64 %y\n}}\n"


def test_functions_come_in_the_order_asked() -> None:
    text = adder(5) + "define i64 @twice(i64 %x) {\n %y = shl i64 %x, 1\n ret i64 %y\n}\n"
    twice, add = compile_functions(text, ["twice", "add"])
    assert INT(twice)(21) == 42
    assert INT(add)(21) == 26


def test_the_same_text_is_linked_once() -> None:
    first = compile_functions(adder(111), ["add"])
    before = statistics()
    assert compile_functions(adder(111), ["add"]) == first
    after = statistics()
    assert (after.reused - before.reused, after.linked - before.linked) == (1, 0)
    assert compile_functions(adder(112), ["add"]) != first


def test_objects_have_no_unwind_tables() -> None:
    """Nothing throws: a link has nothing to register."""
    code = emit_object("define i32 @answer(ptr %p) {\n  %r = call i32 %p()\n  ret i32 %r\n}\n")
    assert b".text" in code and b".eh_frame" not in code


def test_symbols_and_libc() -> None:
    (inner,) = compile_functions(adder(1000), ["add"])
    text = """
declare i64 @add_from_elsewhere(i64)
declare i64 @labs(i64)
define i64 @f(i64 %x) {
  %y = call i64 @add_from_elsewhere(i64 %x)
  %z = call i64 @labs(i64 %y)
  ret i64 %z
}
"""
    (outer,) = compile_functions(text, ["f"], symbols={"add_from_elsewhere": inner})
    assert INT(outer)(-1234) == 234
    (other,) = compile_functions(adder(2000), ["add"])
    (again,) = compile_functions(text, ["f"], symbols={"add_from_elsewhere": other})
    assert INT(again)(-1234) == 766
    assert INT(outer)(-1234) == 234


def test_errors_name_the_place(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CompilationError, match="expected type"):
        compile_functions("define void @f( {", ["f"])
    with pytest.raises(CompilationError, match="cannot link f"):
        compile_functions(
            "declare void @no_such_thing()\ndefine void @f() {\n call void @no_such_thing()\n ret void\n}", ["f"]
        )
    with pytest.raises(CompilationError, match="cannot link g"):
        compile_functions(adder(1), ["g"])
    (address,) = compile_functions(adder(7), ["add"])  # the linker survives its failures
    assert INT(address)(1) == 8


def test_the_key_holds_the_machine() -> None:
    here = machine()
    other = select("generic", here.triple, here.cpu, {})
    assert object_key("x", here) == object_key("x", here)
    assert object_key("x", here) != object_key("y", here)
    same = (other.cpu, other.features, other.triple) == (here.cpu, here.features, here.triple)  # sizes are in the text
    assert (object_key("x", other) == object_key("x", here)) is same
    (address,) = compile_functions(adder(3), ["add"], machine=other)
    assert INT(address)(1) == 4
    assert emit_object(adder(3), other)
    assert "add" in assembly(adder(3), here)


def test_threads_compile_the_same_and_different_texts() -> None:
    results: dict[int, list[int]] = {}

    def work(number: int) -> None:
        results[number] = [compile_functions(adder(n), ["add"])[0] for n in range(500, 512)]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(result == results[0] for result in results.values())
    assert [INT(address)(0) for address in results[0]] == list(range(500, 512))


def test_the_level_of_optimisation_is_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    """More instructions and another entry at level 0, the same results at every level."""
    text = "define i64 @f(i64 %x) {\n  %y = add i64 %x, 8\n  %z = mul i64 %y, 3\n  %w = add i64 %z, 1\n  ret i64 %w\n}\n"
    found = {}
    for level in "0123":
        monkeypatch.setenv("TENSORSMITH_OPTIMISATION", level)
        (address,) = compile_functions(text, ["f"])
        found[level] = (object_key(text, machine()), assembly(text), INT(address)(5))
    assert len({key for key, _, _ in found.values()}) == 4
    assert found["0"][1] != found["3"][1]
    assert {result for _, _, result in found.values()} == {40}
    monkeypatch.delenv("TENSORSMITH_OPTIMISATION")
    assert object_key(text, machine()) == found["3"][0]
    monkeypatch.setenv("TENSORSMITH_OPTIMISATION", "fast")
    with pytest.raises(ValueError, match="'fast' is not a level of optimisation; choose one of 0, 1, 2, 3"):
        compile_functions(text, ["f"])
