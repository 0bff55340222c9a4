"""Small hand-written kernels for the tests of the native parts."""

from __future__ import annotations

import functools

from tensorsmith.targets.cpu.compiler import compile_functions

TEXT = r"""
define void @empty(ptr %a, i32 %chunk, i32 %n, i32 %worker) {
  ret void
}

; *a[0] += 1, atomically
define void @count(ptr %a, i32 %chunk, i32 %n, i32 %worker) {
  %p = load ptr, ptr %a
  %old = atomicrmw add ptr %p, i64 1 monotonic
  ret void
}

; a[0][chunk] += 1 (not atomic: right only if each chunk runs once), a[1][chunk] = n
define void @mark(ptr %a, i32 %chunk, i32 %n, i32 %worker) {
  %p = load ptr, ptr %a
  %i = zext i32 %chunk to i64
  %at = getelementptr i64, ptr %p, i64 %i
  %x = load i64, ptr %at
  %y = add i64 %x, 1
  store i64 %y, ptr %at
  %q_at = getelementptr i64, ptr %a, i64 1
  %q = load ptr, ptr %q_at
  %to = getelementptr i64, ptr %q, i64 %i
  %n64 = zext i32 %n to i64
  store i64 %n64, ptr %to
  ret void
}

; 1 launch word + 5 constants copied out: a[0][i] = a[2 + i]
define void @constants(ptr %a, i32 %chunk, i32 %n, i32 %worker) {
  %p = load ptr, ptr %a
  %from = getelementptr i64, ptr %a, i64 2
  %x = load <5 x i64>, ptr %from, align 8
  store <5 x i64> %x, ptr %p, align 8
  ret void
}

; 3 launch words: a[0][0] = a[1], a[0][1] = a[2]
define void @words(ptr %a, i32 %chunk, i32 %n, i32 %worker) {
  %p = load ptr, ptr %a
  %from = getelementptr i64, ptr %a, i64 1
  %x = load <2 x i64>, ptr %from, align 8
  store <2 x i64> %x, ptr %p, align 8
  ret void
}

; 2 launch words and a constant: *a[1] = *a[0] + a[3]; the sum 13 is an error with code 7
define void @add_constant(ptr %a, i32 %chunk, i32 %n, i32 %worker) {
  %p = load ptr, ptr %a
  %q_at = getelementptr i64, ptr %a, i64 1
  %q = load ptr, ptr %q_at
  %c_at = getelementptr i64, ptr %a, i64 3
  %c = load i64, ptr %c_at
  %x = load i64, ptr %p
  %y = add i64 %x, %c
  store i64 %y, ptr %q
  %unlucky = icmp eq i64 %y, 13
  br i1 %unlucky, label %bad, label %good
bad:
  %e_at = getelementptr i64, ptr %a, i64 2
  %e = load ptr, ptr %e_at
  store i64 7, ptr %e
  ret void
good:
  ret void
}

; *a[0] += 1 after a busy loop of a[2] rounds (1 launch word, 1 constant)
define void @slow(ptr %a, i32 %chunk, i32 %n, i32 %worker) {
entry:
  %p = load ptr, ptr %a
  %rounds_at = getelementptr i64, ptr %a, i64 2
  %rounds = load i64, ptr %rounds_at
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%i1, %loop]
  %v = load volatile i64, ptr %rounds_at
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %rounds
  br i1 %more, label %loop, label %exit
exit:
  %old = atomicrmw add ptr %p, i64 1 monotonic
  ret void
}
"""

# A kernel whose every chunk runs a job of `a[2]` chunks of @count over the same arguments.
NESTED = r"""
declare void @execute(ptr, ptr, i32)
declare void @count(ptr, i32, i32, i32)

define void @nested(ptr %a, i32 %chunk, i32 %n, i32 %worker) {
  %inner_at = getelementptr i64, ptr %a, i64 2
  %inner = load i64, ptr %inner_at
  %inner32 = trunc i64 %inner to i32
  call void @execute(ptr @count, ptr %a, i32 %inner32)
  ret void
}
"""


@functools.cache
def kernel(name: str) -> int:
    """The address of one kernel of ``TEXT``."""
    return compile_functions(TEXT, [name])[0]
