"""The LLVM text of the function that launches the kernels of a step.

It is the function of a recipe (`targets/cpu/recipe.py`), so a step on the GPU is launched, and takes part in plans, like one
on the CPU: `void launch_cuda_P(i64* arguments, i32 chunk, i32 chunks, i32 worker)`, on the calling thread. P words are given,
`arguments[P]` is the address of the launch's error word and `arguments[P + 1]` that of a *table* (`launcher.py`)::

    header   | device's cell, launches, tensor maps, address of the first map, lock, address of the error word of the
             | kernels (or 0), most parameters
    launches | function, then a CUlaunchConfig (the number of parameters lies in its padding, the stream is filled in),
             | then for each parameter: an address, or 2 * i + 1 for word i of those given
    maps     | the CUtensorMap, the address it was made for, word, offset, arguments of cuTensorMapEncodeTiled

A tensor map is encoded anew where its address is another than at the last launch. Kernels take a private copy of their
arguments when they are launched, so the table may change right after; while it is used, it is locked.
"""

from __future__ import annotations

import enum

from tensorsmith.targets.cuda.devices import Cell


class Header(enum.IntEnum):
    """The words at the start of a table."""

    CELL = 0
    LAUNCHES = 1
    MAPS = 2
    FIRST_MAP = 3
    LOCK = 4
    ERROR_WORD = 5
    MOST_PARAMETERS = 6


LAUNCH_WORDS = 8  # function and configuration; the parameters follow
CONFIGURATION_BYTES = 56


class Map(enum.IntEnum):
    """The words of a tensor map's record, which starts at a multiple of 64 bytes."""

    ENCODED = 0  # 16 words
    ADDRESS = 16
    WORD = 17
    OFFSET = 18
    DTYPE = 19
    RANK = 20
    SWIZZLE = 21
    SHAPE = 22  # 5 words
    STRIDES = 27  # 4 words
    BOX = 31  # 5 numbers of 32 bits in 3 words
    STEPS = 34  # 5 numbers of 32 bits in 3 words
    MASK = 37  # of the address


MAP_WORDS = 40
PROMOTION = 2  # L2 fetches 128 bytes
WRAPPERS = 32  # functions of successive P in one module

DRIVER_CODE = -(1 << 20)  # from here downwards: DRIVER_CODE - (launch << LAUNCH_BITS | CUresult)
LAUNCH_BITS = 10

_TEXT = r"""
; What a driver function of the device's cell is called through.
define internal ptr @entry(ptr %cell, i64 %word) {
  %at = getelementptr i64, ptr %cell, i64 %word
  %function = load ptr, ptr %at
  ret ptr %function
}

; The code of a driver's error in launch number %launch.
define internal i64 @driver_code(i64 %launch, i32 %status) {
  %high = shl i64 %launch, {LAUNCH_BITS}
  %wide = zext i32 %status to i64
  %both = or i64 %high, %wide
  %code = sub i64 {DRIVER_CODE}, %both
  ret i64 %code
}

; Encode the maps whose addresses changed; 0 or the code of an error.
define internal i64 @encode_maps(ptr %table, ptr %cell, ptr %arguments) {
entry:
  %count_at = getelementptr i64, ptr %table, i64 {MAPS}
  %count = load i64, ptr %count_at
  %first_at = getelementptr i64, ptr %table, i64 {FIRST_MAP}
  %first = load ptr, ptr %first_at
  %encode = call ptr @entry(ptr %cell, i64 {ENCODE_TENSOR_MAP})
  br label %head
head:
  %i = phi i64 [0, %entry], [%i1, %next]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %look, label %good
look:
  %place = mul i64 %i, {MAP_BYTES}
  %map = getelementptr i8, ptr %first, i64 %place
  %word_at = getelementptr i64, ptr %map, i64 {MAP_WORD}
  %word = load i64, ptr %word_at
  %base_at = getelementptr i64, ptr %arguments, i64 %word
  %base = load i64, ptr %base_at
  %offset_at = getelementptr i64, ptr %map, i64 {MAP_OFFSET}
  %offset = load i64, ptr %offset_at
  %address = add i64 %base, %offset
  %last_at = getelementptr i64, ptr %map, i64 {MAP_ADDRESS}
  %last = load i64, ptr %last_at
  %same = icmp eq i64 %address, %last
  br i1 %same, label %next, label %make
make:
  store i64 0, ptr %last_at
  %dtype_at = getelementptr i64, ptr %map, i64 {MAP_DTYPE}
  %dtype = load i32, ptr %dtype_at
  %rank_at = getelementptr i64, ptr %map, i64 {MAP_RANK}
  %rank = load i32, ptr %rank_at
  %swizzle_at = getelementptr i64, ptr %map, i64 {MAP_SWIZZLE}
  %swizzle = load i32, ptr %swizzle_at
  %shape = getelementptr i64, ptr %map, i64 {MAP_SHAPE}
  %strides = getelementptr i64, ptr %map, i64 {MAP_STRIDES}
  %box = getelementptr i64, ptr %map, i64 {MAP_BOX}
  %steps = getelementptr i64, ptr %map, i64 {MAP_STEPS}
  %mask_at = getelementptr i64, ptr %map, i64 {MAP_MASK}
  %mask = load i64, ptr %mask_at
  %rounded = and i64 %address, %mask
  %pointer = inttoptr i64 %rounded to ptr
  %status = call i32 %encode(ptr %map, i32 %dtype, i32 %rank, ptr %pointer, ptr %shape, ptr %strides, ptr %box,
                             ptr %steps, i32 0, i32 %swizzle, i32 {PROMOTION}, i32 0)
  %fine = icmp eq i32 %status, 0
  br i1 %fine, label %made, label %bad
made:
  store i64 %address, ptr %last_at
  br label %next
next:
  %i1 = add i64 %i, 1
  br label %head
bad:
  %code = call i64 @driver_code(i64 0, i32 %status)
  ret i64 %code
good:
  ret i64 0
}

; All launches of a table, the context being current; 0 or the code of the first error.
define internal i64 @launch_all(ptr %table, ptr %cell, ptr %arguments) {
entry:
  %config = alloca [{CONFIGURATION_BYTES} x i8], align 8
  %launches_at = getelementptr i64, ptr %table, i64 {LAUNCHES}
  %launches = load i64, ptr %launches_at
  %most_at = getelementptr i64, ptr %table, i64 {MOST_PARAMETERS}
  %most = load i64, ptr %most_at
  %parameters = alloca ptr, i64 %most, align 16
  %stream_at = getelementptr i64, ptr %cell, i64 {STREAM}
  %stream = load ptr, ptr %stream_at
  %debug_at = getelementptr i64, ptr %cell, i64 {DEBUG}
  %debug = load i64, ptr %debug_at
  %launch_plain = call ptr @entry(ptr %cell, i64 {LAUNCH})
  %launch_extended = call ptr @entry(ptr %cell, i64 {LAUNCH_EXTENDED})
  %first = getelementptr i64, ptr %table, i64 {HEADER_WORDS}
  br label %head
head:
  %number = phi i64 [0, %entry], [%number1, %done]
  %at = phi ptr [%first, %entry], [%next_at, %done]
  %more = icmp ult i64 %number, %launches
  br i1 %more, label %prepare, label %good
prepare:
  %function = load ptr, ptr %at
  %given = getelementptr i64, ptr %at, i64 1
  %count_at = getelementptr i8, ptr %given, i64 28
  %count32 = load i32, ptr %count_at
  %count = zext i32 %count32 to i64
  %sources = getelementptr i64, ptr %at, i64 {LAUNCH_WORDS}
  br label %parameter_head
parameter_head:
  %p = phi i64 [0, %prepare], [%p1, %parameter_body]
  %more_parameters = icmp ult i64 %p, %count
  br i1 %more_parameters, label %parameter_body, label %go
parameter_body:
  %source_at = getelementptr i64, ptr %sources, i64 %p
  %source = load i64, ptr %source_at
  %is_word = trunc i64 %source to i1
  %word = lshr i64 %source, 1
  %word_at = getelementptr i64, ptr %arguments, i64 %word
  %fixed = inttoptr i64 %source to ptr
  %value_at = select i1 %is_word, ptr %word_at, ptr %fixed
  %slot = getelementptr ptr, ptr %parameters, i64 %p
  store ptr %value_at, ptr %slot
  %p1 = add i64 %p, 1
  br label %parameter_head
go:
  %attributes_at = getelementptr i8, ptr %given, i64 48
  %attributes = load i32, ptr %attributes_at
  %plain = icmp eq i32 %attributes, 0
  br i1 %plain, label %simple, label %extended
simple:
  %gx = load i32, ptr %given
  %gy_at = getelementptr i32, ptr %given, i64 1
  %gy = load i32, ptr %gy_at
  %gz_at = getelementptr i32, ptr %given, i64 2
  %gz = load i32, ptr %gz_at
  %bx_at = getelementptr i32, ptr %given, i64 3
  %bx = load i32, ptr %bx_at
  %by_at = getelementptr i32, ptr %given, i64 4
  %by = load i32, ptr %by_at
  %bz_at = getelementptr i32, ptr %given, i64 5
  %bz = load i32, ptr %bz_at
  %shared_at = getelementptr i32, ptr %given, i64 6
  %shared = load i32, ptr %shared_at
  %status1 = call i32 %launch_plain(ptr %function, i32 %gx, i32 %gy, i32 %gz, i32 %bx, i32 %by, i32 %bz, i32 %shared,
                                    ptr %stream, ptr %parameters, ptr null)
  br label %launched
extended:
  call void @llvm.memcpy.p0.p0.i64(ptr %config, ptr %given, i64 {CONFIGURATION_BYTES}, i1 false)
  %padding = getelementptr i8, ptr %config, i64 28
  store i32 0, ptr %padding
  %stream_slot = getelementptr i8, ptr %config, i64 32
  store ptr %stream, ptr %stream_slot
  %status2 = call i32 %launch_extended(ptr %config, ptr %function, ptr %parameters, ptr null)
  br label %launched
launched:
  %status = phi i32 [%status1, %simple], [%status2, %extended]
  %fine = icmp eq i32 %status, 0
  br i1 %fine, label %look, label %bad
look:
  %careful = icmp ne i64 %debug, 0
  br i1 %careful, label %wait, label %done
wait:
  %synchronize = call ptr @entry(ptr %cell, i64 {SYNCHRONIZE_STREAM})
  %status3 = call i32 %synchronize(ptr %stream)
  %came = icmp eq i32 %status3, 0
  br i1 %came, label %ask, label %bad
ask:
  %error_slot = getelementptr i64, ptr %table, i64 {ERROR_WORD}
  %error_word = load ptr, ptr %error_slot
  %none = icmp eq ptr %error_word, null
  br i1 %none, label %done, label %read
read:
  %written = load volatile i64, ptr %error_word
  %clean = icmp eq i64 %written, 0
  br i1 %clean, label %done, label %reported
reported:
  store volatile i64 0, ptr %error_word
  ret i64 %written
done:
  %number1 = add i64 %number, 1
  %next_at = getelementptr i64, ptr %sources, i64 %count
  br label %head
bad:
  %what = phi i32 [%status, %launched], [%status3, %wait]
  %code = call i64 @driver_code(i64 %number, i32 %what)
  ret i64 %code
good:
  ret i64 0
}

define internal void @run(ptr %arguments, i64 %given) {
entry:
  %before_slot = alloca ptr
  store ptr null, ptr %before_slot
  %error_at = getelementptr i64, ptr %arguments, i64 %given
  %error = load ptr, ptr %error_at
  %table_at = getelementptr i64, ptr %error_at, i64 1
  %table = load ptr, ptr %table_at
  %cell = load ptr, ptr %table
  %context = load ptr, ptr %cell
  %get_context = call ptr @entry(ptr %cell, i64 {GET_CONTEXT})
  %set_context = call ptr @entry(ptr %cell, i64 {SET_CONTEXT})
  %status0 = call i32 %get_context(ptr %before_slot)
  %before = load ptr, ptr %before_slot
  %there = icmp eq ptr %before, %context
  br i1 %there, label %ready, label %set
set:
  %status1 = call i32 %set_context(ptr %context)
  %fine = icmp eq i32 %status1, 0
  br i1 %fine, label %ready, label %lost
lost:
  %lost_code = call i64 @driver_code(i64 0, i32 %status1)
  store i64 %lost_code, ptr %error
  ret void
ready:
  %maps_at = getelementptr i64, ptr %table, i64 {MAPS}
  %maps = load i64, ptr %maps_at
  %no_maps = icmp eq i64 %maps, 0
  br i1 %no_maps, label %free, label %lock
lock:
  %lock_at = getelementptr i64, ptr %table, i64 {LOCK}
  %got = cmpxchg ptr %lock_at, i64 0, i64 1 acquire monotonic, align 8
  %mine = extractvalue {i64, i1} %got, 1
  br i1 %mine, label %encode, label %lock
encode:
  %encode_code = call i64 @encode_maps(ptr %table, ptr %cell, ptr %arguments)
  %encoded = icmp eq i64 %encode_code, 0
  br i1 %encoded, label %locked, label %unlock
locked:
  %locked_code = call i64 @launch_all(ptr %table, ptr %cell, ptr %arguments)
  br label %unlock
unlock:
  %unlock_code = phi i64 [%encode_code, %encode], [%locked_code, %locked]
  store atomic i64 0, ptr %lock_at release, align 8
  br label %finish
free:
  %free_code = call i64 @launch_all(ptr %table, ptr %cell, ptr %arguments)
  br label %finish
finish:
  %code = phi i64 [%unlock_code, %unlock], [%free_code, %free]
  %good = icmp eq i64 %code, 0
  br i1 %good, label %restore, label %tell
tell:
  store i64 %code, ptr %error
  br label %restore
restore:
  %other = icmp ne ptr %before, null
  %changed = xor i1 %there, true
  %back = and i1 %other, %changed
  br i1 %back, label %give_back, label %exit
give_back:
  %status2 = call i32 %set_context(ptr %before)
  ret void
exit:
  ret void
}

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""

_WRAPPER = """
define void @launch_cuda_{P}(ptr %arguments, i32 %chunk, i32 %chunks, i32 %worker) {
  call void @run(ptr %arguments, i64 {P})
  ret void
}
"""


def launcher_text(first: int) -> str:
    """The module with the functions for `first` to `first + WRAPPERS - 1` given words."""
    numbers = {
        **{f"{word.name}": word.value for word in Cell},
        **{f"{word.name}": word.value for word in Header if word is not Header.CELL},
        **{f"MAP_{word.name}": word.value for word in Map},
        "MAP_BYTES": 8 * MAP_WORDS,
        "HEADER_WORDS": len(Header),
        "LAUNCH_WORDS": LAUNCH_WORDS,
        "CONFIGURATION_BYTES": CONFIGURATION_BYTES,
        "PROMOTION": PROMOTION,
        "DRIVER_CODE": DRIVER_CODE,
        "LAUNCH_BITS": LAUNCH_BITS,
    }
    text = _TEXT
    for name, number in numbers.items():
        text = text.replace("{" + name + "}", str(number))
    return text + "".join(_WRAPPER.replace("{P}", str(given)) for given in range(first, first + WRAPPERS))
