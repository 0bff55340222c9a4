"""The LLVM text of the fork-join pool.

A job is (function, arguments, n): ``function(arguments, chunk, n, worker)`` for every chunk in [0, n).  One 64-bit word
``n << 24 | next`` publishes the job and hands out chunks: a thread that increments it owns the chunk it read.  The join
waits until n chunks are done, not until threads have arrived, so a worker that wakes late or is descheduled costs
nothing.  Idle workers spin for some tens of microseconds, then sleep on a futex.

Two properties make the reuse of the word safe.  A thread reads function and arguments only after it has claimed a
chunk, and the job cannot end before that chunk is done, so what it reads belongs to the job of its chunk.  And a claim
that finds nothing left only raises ``next`` beyond n, by at most one per thread and job.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_THREADS = 512
MOST_CHUNKS = 1 << 22  # n and next have 24 bits each; the rest is room for claims that find nothing left
AFFINITY_BYTES = 128  # processors 0..1023


@dataclass(frozen=True)
class State:
    """Byte offsets in the pool's state (one 64-byte line for each thing that different threads write)."""

    WORD: int = 0  # i64: n << 24 | next
    DONE: int = 64  # i32: chunks done, a futex
    SLEEPERS: int = 128  # i32: workers in or near the futex call
    HINTED: int = 132  # i32: how many workers get the affinity hint
    SPIN: int = 136  # i32: pauses before sleeping
    JOINER_SLEEPS: int = 140  # i32
    FUNCTION: int = 144  # ptr
    ARGUMENTS: int = 152  # ptr
    LAST_CPU: int = 160  # i32: the processor that the workers were last told to avoid
    WORKERS: int = 164  # i32: running workers; 0 = everything is serial
    STATUS: int = 168  # i32: 0 not started, 1 settled (running, or serial by choice)
    STOP: int = 172  # i32: workers return
    STARTER: int = 184  # ptr: a Python callable that settles the status
    LOCK: int = 192  # i32: held while a job runs
    EPOCH: int = 256  # i32: number of jobs published, a futex
    MASK: int = 320  # the affinity mask of the process, AFFINITY_BYTES
    SCRATCH_MASK: int = 448
    THREADS: int = 576  # i32 native thread numbers
    SIZE: int = 576 + 4 * MOST_THREADS


STATE = State()

_SERIAL = r"""
define internal void @serial(ptr %function, ptr %arguments, i32 %n) {
entry:
  %some = icmp ne i32 %n, 0
  br i1 %some, label %loop, label %exit
loop:
  %chunk = phi i32 [0, %entry], [%next, %loop]
  call void %function(ptr %arguments, i32 %chunk, i32 %n, i32 0)
  %next = add i32 %chunk, 1
  %more = icmp ult i32 %next, %n
  br i1 %more, label %loop, label %exit
exit:
  ret void
}
"""

_PORTABLE = r"""
; Serial jobs never wait: chunks run in order.
define void @pool_wait(ptr %counter, i64 %n) {
  ret void
}

define void @execute(ptr %function, ptr %arguments, i32 %n) {
  call void @serial(ptr %function, ptr %arguments, i32 %n)
  ret void
}
"""

_LINUX = r"""
declare i64 @syscall(i64, ...)
declare i32 @sched_getcpu()
declare i32 @sched_setaffinity(i32, i64, ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
{pause_declaration}

; Claim one chunk and run it; false when none is left.
define internal i1 @take(i32 %worker) {
  %word0 = load atomic i64, ptr {WORD} acquire, align 64
  %next0 = and i64 %word0, 16777215
  %n0 = lshr i64 %word0, 24
  %maybe = icmp ult i64 %next0, %n0
  br i1 %maybe, label %claim, label %none
claim:
  %word = atomicrmw add ptr {WORD}, i64 1 acq_rel, align 64
  %chunk64 = and i64 %word, 16777215
  %n64 = lshr i64 %word, 24
  %mine = icmp ult i64 %chunk64, %n64
  br i1 %mine, label %work, label %none
work:
  %function = load ptr, ptr {FUNCTION}
  %arguments = load ptr, ptr {ARGUMENTS}
  %chunk = trunc i64 %chunk64 to i32
  %n = trunc i64 %n64 to i32
  call void %function(ptr %arguments, i32 %chunk, i32 %n, i32 %worker)
  %before = atomicrmw add ptr {DONE}, i32 1 seq_cst, align 64
  %done = add i32 %before, 1
  %last = icmp eq i32 %done, %n
  br i1 %last, label %check, label %yes
check:
  %sleeps = load atomic i32, ptr {JOINER_SLEEPS} seq_cst, align 4
  %awake = icmp eq i32 %sleeps, 0
  br i1 %awake, label %yes, label %wake
wake:
  %woken = call i64 (i64, ...) @syscall(i64 {FUTEX}, ptr {DONE}, i64 129, i64 1, ptr null)
  br label %yes
yes:
  ret i1 true
none:
  ret i1 false
}

; The life of a worker thread; it returns when STOP is set.
define void @pool_worker(i32 %worker) {
entry:
  br label %top
top:
  %epoch = load atomic i32, ptr {EPOCH} acquire, align 64
  %stop = load atomic i32, ptr {STOP} acquire, align 4
  %stopping = icmp ne i32 %stop, 0
  br i1 %stopping, label %exit, label %prepare
exit:
  ret void
prepare:
  %spins = load i32, ptr {SPIN}
  br label %work
work:
  %took = call i1 @take(i32 %worker)
  br i1 %took, label %work, label %spin
spin:
  %i = phi i32 [0, %work], [%i1, %spin2]
  %now = load atomic i32, ptr {EPOCH} acquire, align 64
  %news = icmp ne i32 %now, %epoch
  br i1 %news, label %top, label %spin2
spin2:
  {pause}
  %i1 = add i32 %i, 1
  %again = icmp ult i32 %i1, %spins
  br i1 %again, label %spin, label %sleep
sleep:
  %s1 = atomicrmw add ptr {SLEEPERS}, i32 1 seq_cst, align 4
  %epoch64 = zext i32 %epoch to i64
  %slept = call i64 (i64, ...) @syscall(i64 {FUTEX}, ptr {EPOCH}, i64 128, i64 %epoch64, ptr null)
  %s2 = atomicrmw sub ptr {SLEEPERS}, i32 1 seq_cst, align 4
  br label %top
}

; Publish a job, help, and wait until every chunk is done. The lock is held.
define internal void @run_job(ptr %function, ptr %arguments, i32 %n) {
entry:
  store ptr %function, ptr {FUNCTION}
  store ptr %arguments, ptr {ARGUMENTS}
  store atomic i32 0, ptr {DONE} monotonic, align 64
  %n64 = zext i32 %n to i64
  %word = shl i64 %n64, 24
  store atomic i64 %word, ptr {WORD} seq_cst, align 64
  %old = atomicrmw add ptr {EPOCH}, i32 1 seq_cst, align 64
  %sleepers = load atomic i32, ptr {SLEEPERS} seq_cst, align 4
  %all_awake = icmp eq i32 %sleepers, 0
  br i1 %all_awake, label %work, label %cold
cold:
  ; Keep the workers off this thread's processor, or the kernel may queue a woken worker behind the thread that wakes it
  ; (about a millisecond).
  %cpu = call i32 @sched_getcpu()
  %last_cpu = load i32, ptr {LAST_CPU}
  %moved = icmp ne i32 %cpu, %last_cpu
  %known = icmp ult i32 %cpu, {AFFINITY_BITS}
  %hint = and i1 %moved, %known
  br i1 %hint, label %mask, label %wake
mask:
  store i32 %cpu, ptr {LAST_CPU}
  call void @llvm.memcpy.p0.p0.i64(ptr {SCRATCH_MASK}, ptr {MASK}, i64 {AFFINITY_BYTES}, i1 false)
  %byte_index = lshr i32 %cpu, 3
  %byte_offset = zext i32 %byte_index to i64
  %byte_at = getelementptr i8, ptr {SCRATCH_MASK}, i64 %byte_offset
  %byte = load i8, ptr %byte_at
  %bit_index = and i32 %cpu, 7
  %bit_index8 = trunc i32 %bit_index to i8
  %bit = shl i8 1, %bit_index8
  %keep = xor i8 %bit, -1
  %cleared = and i8 %byte, %keep
  store i8 %cleared, ptr %byte_at
  %hinted = load i32, ptr {HINTED}
  br label %each
each:
  %k = phi i32 [0, %mask], [%k1, %tell]
  %more = icmp ult i32 %k, %hinted
  br i1 %more, label %tell, label %wake
tell:
  %k64 = zext i32 %k to i64
  %thread_at = getelementptr i32, ptr {THREADS}, i64 %k64
  %thread = load i32, ptr %thread_at
  %told = call i32 @sched_setaffinity(i32 %thread, i64 {AFFINITY_BYTES}, ptr {SCRATCH_MASK})
  %k1 = add i32 %k, 1
  br label %each
wake:
  %others = sub i64 %n64, 1
  %woken = call i64 (i64, ...) @syscall(i64 {FUTEX}, ptr {EPOCH}, i64 129, i64 %others, ptr null)
  br label %work
work:
  %took = call i1 @take(i32 0)
  br i1 %took, label %work, label %join_start
join_start:
  %spins = load i32, ptr {SPIN}
  br label %join
join:
  %i = phi i32 [0, %join_start], [%i1, %join2]
  %done = load atomic i32, ptr {DONE} acquire, align 64
  %all = icmp eq i32 %done, %n
  br i1 %all, label %exit, label %join2
join2:
  {pause}
  %i1 = add i32 %i, 1
  %again = icmp ult i32 %i1, %spins
  br i1 %again, label %join, label %sleep
sleep:
  store atomic i32 1, ptr {JOINER_SLEEPS} seq_cst, align 4
  %done2 = load atomic i32, ptr {DONE} seq_cst, align 64
  %all2 = icmp eq i32 %done2, %n
  br i1 %all2, label %woke, label %sleep2
sleep2:
  %done64 = zext i32 %done2 to i64
  %slept = call i64 (i64, ...) @syscall(i64 {FUTEX}, ptr {DONE}, i64 128, i64 %done64, ptr null)
  br label %sleep
woke:
  store atomic i32 0, ptr {JOINER_SLEEPS} seq_cst, align 4
  ret void
exit:
  ret void
}

; For chunks that go on where chunks with lower numbers have ended: wait until a counter has reached n. Those are running,
; since chunks are handed out in order; where their thread has lost its processor, so does this one.
define void @pool_wait(ptr %counter, i64 %n) {
entry:
  %spins = load i32, ptr {SPIN}
  br label %look
look:
  %i = phi i32 [0, %entry], [%i1, %pause], [0, %yield]
  %count = load atomic i64, ptr %counter acquire, align 8
  %enough = icmp sge i64 %count, %n
  br i1 %enough, label %exit, label %again
again:
  %spin = icmp ult i32 %i, %spins
  br i1 %spin, label %pause, label %yield
pause:
  {pause}
  %i1 = add i32 %i, 1
  br label %look
yield:
  %yielded = call i64 (i64, ...) @syscall(i64 {YIELD})
  br label %look
exit:
  ret void
}

define i32 @pool_try_lock() {
  %pair = cmpxchg ptr {LOCK}, i32 0, i32 1 acquire monotonic, align 64
  %got = extractvalue { i32, i1 } %pair, 1
  %result = zext i1 %got to i32
  ret i32 %result
}

define void @pool_unlock() {
  store atomic i32 0, ptr {LOCK} release, align 64
  ret void
}

; Make every worker return. The lock is held.
define void @pool_stop() {
  store atomic i32 1, ptr {STOP} seq_cst, align 4
  %old = atomicrmw add ptr {EPOCH}, i32 1 seq_cst, align 64
  %woken = call i64 (i64, ...) @syscall(i64 {FUTEX}, ptr {EPOCH}, i64 129, i64 2147483647, ptr null)
  ret void
}

; A number of pauses, to be timed.
define void @pool_pause(i32 %count) {
entry:
  br label %loop
loop:
  %i = phi i32 [0, %entry], [%i1, %loop]
  {pause}
  %i1 = add i32 %i, 1
  %again = icmp ult i32 %i1, %count
  br i1 %again, label %loop, label %exit
exit:
  ret void
}

; Run a job: over the pool if it is free, else here, chunk after chunk.
define void @execute(ptr %function, ptr %arguments, i32 %n) {
  %several = icmp ugt i32 %n, 1
  br i1 %several, label %look, label %alone
look:
  %workers = load atomic i32, ptr {WORKERS} acquire, align 4
  %some = icmp ne i32 %workers, 0
  br i1 %some, label %lock, label %alone
lock:
  %got = call i32 @pool_try_lock()
  %free = icmp ne i32 %got, 0
  br i1 %free, label %parallel, label %alone
parallel:
  call void @run_job(ptr %function, ptr %arguments, i32 %n)
  call void @pool_unlock()
  ret void
alone:
  call void @serial(ptr %function, ptr %arguments, i32 %n)
  ret void
}
"""

# (numbers of the calls futex and sched_yield, what a spinning thread executes) by architecture
_LINUX_ARCHITECTURES = {
    "x86_64": (202, 24, "llvm.x86.sse2.pause()", ""),
    "aarch64": (98, 124, "llvm.aarch64.hint(i32 1)", "i32"),
}


def linux_architectures() -> tuple[str, ...]:
    """The architectures (names as ``platform.machine()`` gives them) for which the pool's text is known."""
    return tuple(_LINUX_ARCHITECTURES)


def pool_text(architecture: str | None) -> str:
    """The pool's module for Linux on ``architecture``, or the serial one for None.

    Exports ``execute(function, arguments, n)``, ``pool_wait(counter, n)`` and ``pool_state``; with threads also
    ``pool_worker``, ``pool_try_lock``, ``pool_unlock``, ``pool_stop`` and ``pool_pause``.
    """
    head = f"@pool_state = global [{STATE.SIZE} x i8] zeroinitializer, align 64\n"
    if architecture is None:
        return head + _SERIAL + _PORTABLE
    futex, give_way, call, parameter = _LINUX_ARCHITECTURES[architecture]
    text = _LINUX
    for name, offset in vars(STATE).items():
        text = text.replace("{" + name + "}", f"getelementptr (i8, ptr @pool_state, i64 {offset})")
    text = text.replace("{FUTEX}", str(futex)).replace("{YIELD}", str(give_way))
    text = text.replace("{AFFINITY_BITS}", str(AFFINITY_BYTES * 8)).replace("{AFFINITY_BYTES}", str(AFFINITY_BYTES))
    text = text.replace("{pause_declaration}", f"declare void @{call.split('(')[0]}({parameter})")
    return head + _SERIAL + text.replace("{pause}", f"call void @{call}")
