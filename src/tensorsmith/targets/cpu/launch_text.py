"""The LLVM text of the CPython builtins that launch kernels.

Only functions and data that CPython exports are used, and of an object's layout only ``ob_type`` at offset 8, which
``launch`` checks before it trusts this text.  Every argument's type is looked at before its value is read: an int (or a
subclass: bool) gives its 64 bits, a float (or a subclass) the bits of its double, anything else a TypeError.

The function of a recipe and the number of steps of a plan are their first words (`recipe.py`).
"""

from __future__ import annotations

from tensorsmith.targets.cpu.recipe import ERROR_BITS, RELEASE_GIL, SOURCE_BITS, PlanWord, RecipeWord

LAUNCH_TEXT = r"""
@pool_state = external global i8
declare void @execute(ptr, ptr, i32)

@PyLong_Type = external global i8
@PyFloat_Type = external global i8
@_Py_NoneStruct = external global i8
@PyExc_TypeError = external global ptr
@PyExc_ValueError = external global ptr
declare i64 @PyLong_AsLong(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare double @PyFloat_AsDouble(ptr)
declare i64 @PyType_GetFlags(ptr)
declare i32 @PyType_IsSubtype(ptr, ptr)
declare ptr @PyErr_Occurred()
declare ptr @PyErr_Format(ptr, ptr, ...)
declare ptr @PyObject_CallNoArgs(ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)

@wrong_word = private constant [{n_wrong_word} x i8] c"{wrong_word}\00"
@wrong_address = private constant [{n_wrong_address} x i8] c"{wrong_address}\00"
@null_address = private constant [{n_null_address} x i8] c"{null_address}\00"
@no_address = private constant [{n_no_address} x i8] c"{no_address}\00"
@wrong_count = private constant [{n_wrong_count} x i8] c"{wrong_count}\00"

; Store the word of a Python number; on failure a Python error is set. (PyLong_AsLong: `long` has 64 bits on every
; platform this text runs on, and PyLong_AsLongLong takes 10 ns more for an address.)
define internal i1 @unbox(ptr %object, ptr %to, i64 %index) {
entry:
  %type_at = getelementptr i8, ptr %object, i64 8
  %type = load ptr, ptr %type_at
  %is_int = icmp eq ptr %type, @PyLong_Type
  br i1 %is_int, label %int, label %not_int
not_int:
  %is_float = icmp eq ptr %type, @PyFloat_Type
  br i1 %is_float, label %float, label %other
other:
  %type_flags = call i64 @PyType_GetFlags(ptr %type)
  %long_bit = and i64 %type_flags, 16777216
  %is_int_like = icmp ne i64 %long_bit, 0
  br i1 %is_int_like, label %int, label %other2
other2:
  %subtype = call i32 @PyType_IsSubtype(ptr %type, ptr @PyFloat_Type)
  %is_float_like = icmp ne i32 %subtype, 0
  br i1 %is_float_like, label %float, label %wrong
wrong:
  %exception = load ptr, ptr @PyExc_TypeError
  %e = call ptr (ptr, ptr, ...) @PyErr_Format(ptr %exception, ptr @wrong_word, i64 %index, ptr %type)
  ret i1 false
int:
  %value = call i64 @PyLong_AsLong(ptr %object)
  store i64 %value, ptr %to
  %suspect = icmp eq i64 %value, -1
  br i1 %suspect, label %check, label %good
check:
  %error = call ptr @PyErr_Occurred()
  %fine = icmp eq ptr %error, null
  ret i1 %fine
float:
  %double = call double @PyFloat_AsDouble(ptr %object)
  store double %double, ptr %to
  ret i1 true
good:
  ret i1 true
}

; The address in args[0], or null with a Python error set.
define internal ptr @first_address(ptr %args, i64 %nargs) {
entry:
  %slot = alloca i64
  %empty = icmp slt i64 %nargs, 1
  br i1 %empty, label %missing, label %look
missing:
  %type_error = load ptr, ptr @PyExc_TypeError
  %e1 = call ptr (ptr, ptr, ...) @PyErr_Format(ptr %type_error, ptr @no_address)
  ret ptr null
look:
  %object = load ptr, ptr %args
  %type_at = getelementptr i8, ptr %object, i64 8
  %type = load ptr, ptr %type_at
  %is_int = icmp eq ptr %type, @PyLong_Type
  br i1 %is_int, label %read, label %wrong
wrong:
  %type_error2 = load ptr, ptr @PyExc_TypeError
  %e2 = call ptr (ptr, ptr, ...) @PyErr_Format(ptr %type_error2, ptr @wrong_address, ptr %type)
  ret ptr null
read:
  %ok = call i1 @unbox(ptr %object, ptr %slot, i64 -1)
  br i1 %ok, label %got, label %failed
failed:
  ret ptr null
got:
  %address = load ptr, ptr %slot
  %number = ptrtoint ptr %address to i64
  %valid = icmp sgt i64 %number, 0
  br i1 %valid, label %good, label %bad
bad:
  %value_error = load ptr, ptr @PyExc_ValueError
  %e3 = call ptr (ptr, ptr, ...) @PyErr_Format(ptr %value_error, ptr @null_address, ptr %object)
  ret ptr null
good:
  ret ptr %address
}

; Unbox args[1..count] into table[0..count); nargs must be count + 1.
define internal i1 @unbox_all(ptr %args, i64 %nargs, i64 %count, ptr %table) {
entry:
  %given = sub i64 %nargs, 1
  %right = icmp eq i64 %given, %count
  br i1 %right, label %head, label %wrong
wrong:
  %type_error = load ptr, ptr @PyExc_TypeError
  %e = call ptr (ptr, ptr, ...) @PyErr_Format(ptr %type_error, ptr @wrong_count, i64 %count, i64 %given)
  ret i1 false
head:
  %i = phi i64 [0, %entry], [%i1, %next]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %body, label %good
body:
  %i1 = add i64 %i, 1
  %object_at = getelementptr ptr, ptr %args, i64 %i1
  %object = load ptr, ptr %object_at
  %to = getelementptr i64, ptr %table, i64 %i
  %ok = call i1 @unbox(ptr %object, ptr %to, i64 %i)
  br i1 %ok, label %next, label %failed
next:
  br label %head
failed:
  ret i1 false
good:
  ret i1 true
}

; Let Python start the pool's threads at the first job that could use them; false with an error set.
define internal i1 @ready(i64 %chunks) {
entry:
  %several = icmp ugt i64 %chunks, 1
  br i1 %several, label %look, label %good
look:
  %status = load atomic i32, ptr getelementptr (i8, ptr @pool_state, i64 {STATUS}) acquire, align 4
  %settled = icmp ne i32 %status, 0
  br i1 %settled, label %good, label %start
start:
  %starter = load ptr, ptr getelementptr (i8, ptr @pool_state, i64 {STARTER})
  %result = call ptr @PyObject_CallNoArgs(ptr %starter)
  %failed = icmp eq ptr %result, null
  br i1 %failed, label %bad, label %started
bad:
  ret i1 false
started:
  call void @Py_DecRef(ptr %result)
  ret i1 true
good:
  ret i1 true
}

; Copy a recipe's constants (in groups of four words, both arrays are padded) behind the launch words.
define internal void @copy_constants(ptr %recipe, ptr %arguments, i64 %given, i64 %width) {
entry:
  %from = getelementptr i64, ptr %recipe, i64 {RECIPE_ARGUMENTS}
  %first = and i64 %given, -4
  br label %head
head:
  %i = phi i64 [%first, %entry], [%i1, %body]
  %more = icmp ult i64 %i, %width
  br i1 %more, label %body, label %exit
body:
  %source = getelementptr i64, ptr %from, i64 %i
  %to = getelementptr i64, ptr %arguments, i64 %i
  %four = load <4 x i64>, ptr %source, align 8
  store <4 x i64> %four, ptr %to, align 8
  %i1 = add i64 %i, 4
  br label %head
exit:
  ret void
}

define ptr @launch(ptr %self, ptr %args, i64 %nargs) {
entry:
  %error = alloca i64
  %recipe = call ptr @first_address(ptr %args, i64 %nargs)
  %nothing = icmp eq ptr %recipe, null
  br i1 %nothing, label %fail, label %read
fail:
  ret ptr null
read:
  %function = load ptr, ptr %recipe
  %chunks_at = getelementptr i64, ptr %recipe, i64 {RECIPE_CHUNKS}
  %chunks = load i64, ptr %chunks_at
  %count_at = getelementptr i64, ptr %recipe, i64 {RECIPE_GIVEN}
  %count = load i64, ptr %count_at
  %width_at = getelementptr i64, ptr %recipe, i64 {RECIPE_WIDTH}
  %width = load i64, ptr %width_at
  %flags_at = getelementptr i64, ptr %recipe, i64 {RECIPE_FLAGS}
  %flags = load i64, ptr %flags_at
  %room = add i64 %width, 4
  %arguments = alloca i64, i64 %room, align 64
  call void @copy_constants(ptr %recipe, ptr %arguments, i64 %count, i64 %width)
  %ok = call i1 @unbox_all(ptr %args, i64 %nargs, i64 %count, ptr %arguments)
  br i1 %ok, label %threads, label %fail
threads:
  %is_ready = call i1 @ready(i64 %chunks)
  br i1 %is_ready, label %go, label %fail
go:
  store i64 0, ptr %error
  %error_at = getelementptr i64, ptr %arguments, i64 %count
  store ptr %error, ptr %error_at
  %n = trunc i64 %chunks to i32
  %release = and i64 %flags, {RELEASE_GIL}
  %keep_gil = icmp eq i64 %release, 0
  br i1 %keep_gil, label %locked, label %unlocked
locked:
  call void @execute(ptr %function, ptr %arguments, i32 %n)
  br label %result
unlocked:
  %thread = call ptr @PyEval_SaveThread()
  call void @execute(ptr %function, ptr %arguments, i32 %n)
  call void @PyEval_RestoreThread(ptr %thread)
  br label %result
result:
  %code = load i64, ptr %error
  %good = icmp eq i64 %code, 0
  br i1 %good, label %none, label %bad
bad:
  %number = call ptr @PyLong_FromLongLong(i64 %code)
  ret ptr %number
none:
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
}

; Run the steps of a plan over a table of words; 0, or step << 32 | code of the first error.
define internal i64 @run_plan(ptr %plan, ptr %table, ptr %arguments, i64 %steps, ptr %body) {
entry:
  %error = alloca i64
  store i64 0, ptr %error
  br label %head
head:
  %step = phi i64 [0, %entry], [%step1, %done]
  %at = phi ptr [%body, %entry], [%next_at, %done]
  %more = icmp ult i64 %step, %steps
  br i1 %more, label %prepare, label %good
prepare:
  %recipe = load ptr, ptr %at
  %function = load ptr, ptr %recipe
  %chunks_at = getelementptr i64, ptr %recipe, i64 {RECIPE_CHUNKS}
  %chunks = load i64, ptr %chunks_at
  %count_at = getelementptr i64, ptr %recipe, i64 {RECIPE_GIVEN}
  %count = load i64, ptr %count_at
  %width_at = getelementptr i64, ptr %recipe, i64 {RECIPE_WIDTH}
  %width = load i64, ptr %width_at
  call void @copy_constants(ptr %recipe, ptr %arguments, i64 %count, i64 %width)
  %sources = getelementptr i64, ptr %at, i64 1
  br label %source_head
source_head:
  %i = phi i64 [0, %prepare], [%i1, %source_body]
  %more_sources = icmp ult i64 %i, %count
  br i1 %more_sources, label %source_body, label %go
source_body:
  %source_at = getelementptr i64, ptr %sources, i64 %i
  %source = load i64, ptr %source_at
  %index = and i64 %source, {SOURCE_MASK}
  %offset = ashr i64 %source, {SOURCE_BITS}
  %value_at = getelementptr i64, ptr %table, i64 %index
  %base = load i64, ptr %value_at
  %value = add i64 %base, %offset
  %to = getelementptr i64, ptr %arguments, i64 %i
  store i64 %value, ptr %to
  %i1 = add i64 %i, 1
  br label %source_head
go:
  %error_at = getelementptr i64, ptr %arguments, i64 %count
  store ptr %error, ptr %error_at
  %n = trunc i64 %chunks to i32
  call void @execute(ptr %function, ptr %arguments, i32 %n)
  %code = load i64, ptr %error
  %failed = icmp ne i64 %code, 0
  br i1 %failed, label %bad, label %done
done:
  %step1 = add i64 %step, 1
  %next_at = getelementptr i64, ptr %sources, i64 %count
  br label %head
bad:
  %high = shl i64 %step, {ERROR_BITS}
  %low = and i64 %code, {ERROR_MASK}
  %both = or i64 %high, %low
  ret i64 %both
good:
  ret i64 0
}

define ptr @launch_many(ptr %self, ptr %args, i64 %nargs) {
entry:
  %plan = call ptr @first_address(ptr %args, i64 %nargs)
  %nothing = icmp eq ptr %plan, null
  br i1 %nothing, label %fail, label %read
fail:
  ret ptr null
read:
  %steps = load i64, ptr %plan
  %count_at = getelementptr i64, ptr %plan, i64 {PLAN_GIVEN}
  %count = load i64, ptr %count_at
  %slots_at = getelementptr i64, ptr %plan, i64 {PLAN_SLOTS}
  %slots = load i64, ptr %slots_at
  %width_at = getelementptr i64, ptr %plan, i64 {PLAN_WIDTH}
  %width = load i64, ptr %width_at
  %flags_at = getelementptr i64, ptr %plan, i64 {PLAN_FLAGS}
  %flags = load i64, ptr %flags_at
  %chunks_at = getelementptr i64, ptr %plan, i64 {PLAN_CHUNKS}
  %chunks = load i64, ptr %chunks_at
  %values = getelementptr i64, ptr %plan, i64 {PLAN_SLOT_VALUES}
  %room = add i64 %width, 4
  %arguments = alloca i64, i64 %room, align 64
  %table_size = add i64 %count, %slots
  %table_room = add i64 %table_size, 1
  %table = alloca i64, i64 %table_room, align 64
  %ok = call i1 @unbox_all(ptr %args, i64 %nargs, i64 %count, ptr %table)
  br i1 %ok, label %threads, label %fail
threads:
  %is_ready = call i1 @ready(i64 %chunks)
  br i1 %is_ready, label %slot_head, label %fail
slot_head:
  %i = phi i64 [0, %threads], [%i1, %slot_body]
  %more = icmp ult i64 %i, %slots
  br i1 %more, label %slot_body, label %go
slot_body:
  %value_at = getelementptr i64, ptr %values, i64 %i
  %value = load i64, ptr %value_at
  %to_index = add i64 %count, %i
  %to = getelementptr i64, ptr %table, i64 %to_index
  store i64 %value, ptr %to
  %i1 = add i64 %i, 1
  br label %slot_head
go:
  %body = getelementptr i64, ptr %values, i64 %slots
  %release = and i64 %flags, {RELEASE_GIL}
  %keep_gil = icmp eq i64 %release, 0
  br i1 %keep_gil, label %locked, label %unlocked
locked:
  %result1 = call i64 @run_plan(ptr %plan, ptr %table, ptr %arguments, i64 %steps, ptr %body)
  br label %result
unlocked:
  %thread = call ptr @PyEval_SaveThread()
  %result2 = call i64 @run_plan(ptr %plan, ptr %table, ptr %arguments, i64 %steps, ptr %body)
  call void @PyEval_RestoreThread(ptr %thread)
  br label %result
result:
  %code = phi i64 [%result1, %locked], [%result2, %unlocked]
  %good = icmp eq i64 %code, 0
  br i1 %good, label %none, label %bad
bad:
  %number = call ptr @PyLong_FromLongLong(i64 %code)
  ret ptr %number
none:
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
}
"""

MESSAGES = {
    "wrong_word": "launch word %zd must be an int or a float, not %R",
    "wrong_address": "the first argument of a launch is the int address of a recipe or plan, not %R",
    "null_address": "a launch needs the address of a recipe or plan, got %R",
    "no_address": "a launch needs the address of a recipe or plan",
    "wrong_count": "the launch takes %zd words, got %zd",
}


def launch_text(status_offset: int, starter_offset: int) -> str:
    """The module with ``launch`` and ``launch_many``; it imports ``execute`` and ``pool_state``."""
    numbers = {
        "STATUS": status_offset,
        "STARTER": starter_offset,
        **{f"RECIPE_{word.name}": word.value for word in RecipeWord},
        **{f"PLAN_{word.name}": word.value for word in PlanWord},
        "RELEASE_GIL": RELEASE_GIL,
        "SOURCE_BITS": SOURCE_BITS,
        "SOURCE_MASK": (1 << SOURCE_BITS) - 1,
        "ERROR_BITS": ERROR_BITS,
        "ERROR_MASK": (1 << ERROR_BITS) - 1,
    }
    text = LAUNCH_TEXT
    for name, number in numbers.items():
        text = text.replace("{" + name + "}", str(number))
    for name, message in MESSAGES.items():
        text = text.replace("{n_" + name + "}", str(len(message) + 1)).replace("{" + name + "}", message)
    return text
