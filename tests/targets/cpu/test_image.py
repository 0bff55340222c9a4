"""Objects as images: distances, calls outwards, variables, several objects in one, damage."""

from __future__ import annotations

import ctypes
import math
import random

import pytest

from tensorsmith.targets.cpu.compiler import compile_functions, emit_object
from tensorsmith.targets.cpu.image import address_of, image_of, images_run_here, load

pytestmark = pytest.mark.skipif(not images_run_here(), reason="images are for x86-64 under Linux; JITLink serves the others")

INT = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
COUNTER = """
@count = internal global i64 zeroinitializer
define i64 @add(i64 %x) {
  %before = load i64, ptr @count
  %after = add i64 %before, %x
  store i64 %after, ptr @count
  ret i64 %after
}
"""
TABLE = """
@table = internal constant [4 x i64] [i64 3, i64 5, i64 7, i64 11]
declare i64 @labs(i64)
define i64 @add(i64 %x) {
  %place = getelementptr [4 x i64], ptr @table, i64 0, i64 %x
  %found = load i64, ptr %place
  %minus = sub i64 0, %found
  %y = call i64 @labs(i64 %minus)
  ret i64 %y
}
"""
OUTSIDE = """
@number = external global i64
define i64 @add(i64 %x) {
  %n = load i64, ptr @number
  %y = add i64 %n, %x
  ret i64 %y
}
"""
UNKNOWN = """
declare i64 @no_such(i64)
define i64 @f(i64 %x) {
  %y = call i64 @no_such(i64 %x)
  ret i64 %y
}
"""
VARIABLE = "@n = global i64 5\ndefine i64 @add(i64 %x) {\n %n = load i64, ptr @n\n %y = add i64 %n, %x\n ret i64 %y\n}\n"


def test_several_objects_with_the_same_names_are_one_image() -> None:
    image = image_of([emit_object(text) for text in (COUNTER, TABLE, OUTSIDE, COUNTER)])
    assert image is not None and len(image.code) % 4096 == 0 and {"labs", "number"} <= set(image.slots)
    number = ctypes.c_int64(100)
    symbols = {"number": ctypes.addressof(number)}
    for _ in range(2):  # each copy has variables of its own
        base = load(image, symbols)
        counter, table, outside, other = (INT(base + names["add"]) for names in image.exports)
        assert [counter(2), counter(3), other(10), counter(1)] == [2, 5, 10, 6]
        assert [table(k) for k in range(4)] == [3, 5, 7, 11]
        assert outside(1) == 101
    number.value = 5
    assert outside(1) == 6


def test_what_has_no_image_is_linked_by_llvm() -> None:
    assert image_of([emit_object(VARIABLE)]) is None  # a variable with a first value
    (address,) = compile_functions(VARIABLE, ["add"])
    assert INT(address)(2) == 7
    assert image_of([b"\xcf\xfa\xed\xfe" + bytes(100)]) is None  # another format


def test_names_that_nobody_has() -> None:
    image = image_of([emit_object(UNKNOWN)])
    assert image is not None
    with pytest.raises(LookupError, match="no_such"):
        load(image)
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(address_of("cos"))(0.5) == math.cos(0.5)


def test_damaged_objects_raise_and_nothing_else() -> None:
    whole = emit_object(TABLE)
    dice = random.Random(0)
    for length in range(0, len(whole), 7):
        assert_refused(whole[:length])
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[dice.randrange(len(whole))] ^= 1 << dice.randrange(8)
        try:
            image_of([bytes(damaged)])  # a changed instruction is not noticed here: the cache has digests
        except ValueError as error:
            assert "damaged" in str(error)


def assert_refused(raw: bytes) -> None:
    try:
        assert image_of([raw]) is None
    except ValueError as error:
        assert "damaged" in str(error)
