// Blocks of fibers. All threads of a launch run on one thread of the host: one after the other until they wait.
#include "machine.h"

#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <sys/mman.h>
#include <vector>

extern "C" {
Index3 emulated_thread, emulated_block, emulated_block_size, emulated_grid_size, emulated_cluster_size;
char* emulated_shared;
}

namespace machine {

thread_local char fault_text[4096];
void (*at_poll)() = [] {};
void (*at_launch)() = [] {};
void (*at_end)() = [] {};

namespace {

constexpr size_t STACK = 256 * 1024;
constexpr size_t PAGE = 4096;

struct Thread;

struct Stack {
    void* pointer = nullptr;  // saved by a switch
    char* memory = nullptr;
    Thread* thread = nullptr;
};

struct Block;

struct Thread {
    Index3 index;
    unsigned int number;  // in its block
    Block* block;
    Stack* stack;
    const char* waiting;  // for what, or null
    int waiting_line;
    bool done;
    unsigned int cluster_phase;  // in which it arrived at the barrier of the cluster
};

struct Meeting {  // threads of a group that come together
    unsigned int mask = 0;
    unsigned int here = 0;
    Collective act = nullptr;
    const void* shared = nullptr;
    void* mine[32];
    Thread* threads[32];
};

struct Warp {
    unsigned int alive;
    Meeting meetings[4];
};

struct Warpgroup {
    unsigned int here = 0;
    Collective act = nullptr;
    void* mine[128];
    Thread* threads[128];
};

struct Barrier {
    unsigned int here = 0;
    int expected = 0;  // -1: every living thread
    int line = 0;
    int count = 0;
    bool all = true, any = false;
    int kind = -1;
    std::vector<Thread*> threads;
    std::vector<int*> results;
};

struct Block {
    Index3 index;
    unsigned int rank;
    char* shared;
    unsigned int alive;
    std::vector<Warp> warps;
    std::vector<Warpgroup> warpgroups;
    Barrier barriers[16];
};

std::vector<Thread> threads;
std::vector<Block> blocks;  // of the cluster that runs
std::vector<Stack*> stacks, free_stacks;
Stack main_stack;
Stack* running;
Thread* current;
std::deque<Thread*> ready;
unsigned int next_start, living, idle_polls;
const Launch* launch_now;
sigjmp_buf escape;
int fault_code;
volatile sig_atomic_t in_kernel;
char* windows;

unsigned int cluster_arrived, cluster_phase;

extern "C" void emulated_switch(void** save, void* load);
#if defined(__x86_64__)
asm(R"(
.text
.globl emulated_switch
.hidden emulated_switch
.type emulated_switch, @function
emulated_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emulated_switch, .-emulated_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl emulated_switch
.hidden emulated_switch
.type emulated_switch, %function
emulated_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size emulated_switch, .-emulated_switch
)");
#else
#error "no context switch for this processor"
#endif

void fiber_main();

void prepare(Stack* stack) {
    uintptr_t top = ((uintptr_t)stack->memory + STACK) & ~(uintptr_t)15;
    void** frame = (void**)top;
#if defined(__x86_64__)
    *--frame = nullptr;  // so that the entry sees the alignment of a called function
    *--frame = (void*)fiber_main;
    for (int i = 0; i < 6; i++) *--frame = nullptr;
#else
    frame -= 20;
    memset(frame, 0, 160);
    frame[11] = (void*)fiber_main;  // x30
#endif
    stack->pointer = frame;
}

Stack* new_stack() {
    char* memory = (char*)mmap(nullptr, STACK + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fault(2, "no memory for the stack of another thread");
    mprotect(memory, PAGE, PROT_NONE);
    Stack* stack = new Stack;
    stack->memory = memory + PAGE;
    prepare(stack);
    stacks.push_back(stack);
    return stack;
}

void enter(Thread* thread) {
    current = thread;
    emulated_thread = thread->index;
    emulated_block = thread->block->index;
    emulated_shared = thread->block->shared;
}

void switch_to(Stack* target) {
    Stack* mine = running;
    if (target == mine) return;
    running = target;
    emulated_switch(&mine->pointer, target->pointer);
    if (mine->thread) enter(mine->thread);
}

[[noreturn]] void deadlock() {
    char text[3000];
    size_t used = 0;
    unsigned int shown = 0;
    for (Thread& t : threads) {
        if (t.done) continue;
        if (shown && (&t)[-1].done == false && (&t)[-1].waiting == t.waiting && (&t)[-1].waiting_line == t.waiting_line &&
            (&t)[-1].block == t.block)
            continue;  // the first of equal neighbours stands for them
        if (++shown > 12 || used > sizeof text - 200) break;
        used += snprintf(text + used, sizeof text - used, "\n  from thread %u of block (%u, %u, %u): %s", t.number, t.block->index.x,
                         t.block->index.y, t.block->index.z, t.waiting ? t.waiting : "not started");
        if (t.waiting_line > 0) used += snprintf(text + used, sizeof text - used, " (line %d)", t.waiting_line);
    }
    fault(719, "deadlock: every living thread waits%s", text);
}

Stack* start_next() {
    Thread* thread = &threads[next_start++];
    if (free_stacks.empty()) free_stacks.push_back(new_stack());
    thread->stack = free_stacks.back();
    free_stacks.pop_back();
    thread->stack->thread = thread;
    return thread->stack;
}

// EMULATED_ORDER: a seed, for threads and blocks that run in some order instead of one after the other.
unsigned long long order_state;
unsigned int drawn(unsigned int below) {
    order_state ^= order_state << 13;
    order_state ^= order_state >> 7;
    order_state ^= order_state << 17;
    return (unsigned int)(order_state >> 33) % below;
}

Stack* pick() {
    if (order_state && (!ready.empty() || next_start < threads.size())) {
        if (ready.empty() || (next_start < threads.size() && drawn(2))) return start_next();
        const unsigned int at = drawn((unsigned int)ready.size());
        Thread* thread = ready[at];
        ready.erase(ready.begin() + at);
        return thread->stack;
    }
    if (!ready.empty()) {
        Thread* thread = ready.front();
        ready.pop_front();
        return thread->stack;
    }
    if (next_start < threads.size()) return start_next();
    if (!living) return &main_stack;
    deadlock();
}

void wait(const char* what, int line = 0) {
    current->waiting = what;
    current->waiting_line = line;
    switch_to(pick());
    current->waiting = nullptr;
}

void wake(Thread* thread) {
    if (thread != current) ready.push_back(thread);
}

// Who came last to a barrier goes on first; not so in an order of its own.
void go_on() {
    if (!order_state) return;
    ready.push_back(current);
    switch_to(pick());
}

// ---------------------------------------------------------------------------------------------------------- meetings

bool complete(Warp& warp, Meeting& meeting) {
    const unsigned int wanted = meeting.mask & warp.alive;
    if (!meeting.here || (meeting.here & wanted) != wanted) return false;
    meeting.act(meeting.mine, 32, meeting.shared);
    for (int lane = 0; lane < 32; lane++) {
        if (meeting.here >> lane & 1) wake(meeting.threads[lane]);
    }
    meeting.here = 0;
    return true;
}

void release(Block& block, Barrier& barrier) {
    for (int* result : barrier.results) *result = barrier.kind == 0 ? barrier.count : barrier.kind == 1 ? barrier.all : barrier.any;
    for (Thread* thread : barrier.threads) wake(thread);
    barrier.threads.clear();
    barrier.results.clear();
    barrier.here = 0;
    barrier.count = 0;
    barrier.all = true;
    barrier.any = false;
}

bool full(Block& block, Barrier& barrier) {
    return barrier.here && barrier.here >= (barrier.expected < 0 ? block.alive : (unsigned int)barrier.expected);
}

void check_cluster() {
    if (cluster_arrived && cluster_arrived >= living) {
        cluster_arrived = 0;
        cluster_phase++;
        progress();
    }
}

void finish(Thread* thread) {
    thread->done = true;
    living--;
    idle_polls = 0;
    Block& block = *thread->block;
    block.alive--;
    Warp& warp = block.warps[thread->number / 32];
    warp.alive &= ~(1u << thread->number % 32);
    for (Meeting& meeting : warp.meetings) complete(warp, meeting);
    for (Barrier& barrier : block.barriers) {
        if (barrier.expected < 0 && full(block, barrier)) release(block, barrier);
    }
    check_cluster();
}

void fiber_main() {
    for (;;) {
        Stack* mine = running;
        enter(mine->thread);
        launch_now->kernel->call(launch_now->arguments);
        finish(current);
        if (ready.empty() && next_start < threads.size()) {  // the next thread can have this stack
            Thread* next = &threads[next_start++];
            next->stack = mine;
            mine->thread = next;
            continue;
        }
        mine->thread = nullptr;
        Stack* target = pick();
        free_stacks.push_back(mine);
        switch_to(target);
    }
}

// ------------------------------------------------------------------------------------------------------------ faults

const int SIGNALS[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
struct sigaction previous[4];

void on_signal(int number, siginfo_t* info, void*) {
    if (!in_kernel) return;
    const char* where = "";
    switch (number) {
        case SIGSEGV:
        case SIGBUS:
            fault_code = info->si_code == SI_KERNEL ? 716 : 700;
            where = fault_code == 716 ? "a misaligned access" : "an access outside what is allocated";
            for (Stack* stack : stacks) {
                if ((char*)info->si_addr >= stack->memory - PAGE && (char*)info->si_addr < stack->memory) where = "the stack overflowed";
            }
            break;
        case SIGILL:
            fault_code = 716;
            where = "a misaligned access, or an index outside a local array";
            break;
        default:
            fault_code = 719;
            where = "an integer division by zero";
    }
    snprintf(fault_text, sizeof fault_text, "%s at address %p, thread %u of block (%u, %u, %u)", where, info->si_addr,
             current ? current->number : 0, emulated_block.x, emulated_block.y, emulated_block.z);
    siglongjmp(escape, 1);
}

struct Guard {  // of signals while a kernel runs
    stack_t before;
    Guard() {
        static thread_local char* area = (char*)malloc(64 * 1024);
        stack_t own{};
        own.ss_sp = area;
        own.ss_size = 64 * 1024;
        sigaltstack(&own, &before);
        struct sigaction action {};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        for (int i = 0; i < 4; i++) sigaction(SIGNALS[i], &action, &previous[i]);
    }
    ~Guard() {
        for (int i = 0; i < 4; i++) sigaction(SIGNALS[i], &previous[i], nullptr);
        sigaltstack(&before, nullptr);
    }
};

void run_cluster(Index3 first) {
    const Launch& l = *launch_now;
    const unsigned int size = l.block.x * l.block.y * l.block.z, count = l.cluster.x * l.cluster.y * l.cluster.z;
    blocks.resize(count);
    threads.resize((size_t)size * count);
    unsigned int at = 0;
    for (unsigned int rank = 0; rank < count; rank++) {
        Block& block = blocks[rank];
        block.index = {first.x + rank % l.cluster.x, first.y + rank / l.cluster.x % l.cluster.y,
                       first.z + rank / (l.cluster.x * l.cluster.y)};
        block.rank = rank;
        block.shared = windows + (size_t)rank * WINDOW;
        block.alive = size;
        block.warps.assign((size + 31) / 32, Warp());
        block.warpgroups.assign((size + 127) / 128, Warpgroup());
        for (unsigned int w = 0; w < block.warps.size(); w++) {
            const unsigned int lanes = size - 32 * w;
            block.warps[w].alive = lanes >= 32 ? ~0u : (1u << lanes) - 1;
        }
        for (Barrier& barrier : block.barriers) barrier = Barrier();
        // Nothing may be expected of fresh shared memory: all bits set, a NaN.
        memset(block.shared + RESERVED, 0xff, l.shared_bytes + 128);
        if (*l.static_bytes) memset(block.shared + SHARED_BYTES - *l.static_bytes, 0xff, *l.static_bytes);
        for (unsigned int n = 0; n < size; n++, at++) {
            Thread& t = threads[at];
            t.index = {n % l.block.x, n / l.block.x % l.block.y, n / (l.block.x * l.block.y)};
            t.number = n;
            t.block = &block;
            t.stack = nullptr;
            t.waiting = nullptr;
            t.done = false;
        }
    }
    ready.clear();
    next_start = 0;
    living = threads.size();
    idle_polls = cluster_arrived = cluster_phase = 0;
    running = &main_stack;
    at_launch();
    switch_to(pick());
    at_end();
}

}  // namespace

void fault(int code, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(fault_text, sizeof fault_text, format, arguments);
    va_end(arguments);
    fault_code = code;
    if (!in_kernel) {
        fprintf(stderr, "emulator: %s\n", fault_text);
        abort();
    }
    siglongjmp(escape, 1);
}

unsigned int thread_in_block() { return current->number; }

void progress() { idle_polls = 0; }

unsigned long long thread_key() { return current - threads.data(); }

void poll() {
    at_poll();
    // Were all living threads polling, twice over, nothing would ever change.
    if (++idle_polls > (order_state ? 40 : 2) * living + 2 && ready.size() + 1 >= living && next_start >= threads.size()) deadlock();
    if (idle_polls > 64 * (living + 2) && next_start >= threads.size()) deadlock();
    if (ready.empty() && next_start >= threads.size()) return;
    ready.push_back(current);
    if (!current->waiting) current->waiting = "polls";
    switch_to(next_start < threads.size() ? start_next() : pick());
    current->waiting = nullptr;
}

int run(const Launch& launch) {
    if (!windows) {
        windows = (char*)mmap(nullptr, (size_t)WINDOW * (MOST_CLUSTER + 1), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        windows = (char*)(((uintptr_t)windows + WINDOW - 1) & ~(uintptr_t)(WINDOW - 1));
        for (unsigned int i = 0; i < MOST_CLUSTER; i++) mprotect(windows + (size_t)i * WINDOW, SHARED_BYTES, PROT_READ | PROT_WRITE);
    }
    launch_now = &launch;
    emulated_block_size = launch.block;
    emulated_grid_size = launch.grid;
    emulated_cluster_size = launch.cluster;
    fault_code = 0;
    Guard guard;
    in_kernel = 1;
    static const char* seed = getenv("EMULATED_ORDER");
    order_state = seed && *seed ? 0x9e3779b97f4a7c15ull * (unsigned long long)atoll(seed) : 0;
    const unsigned long long blocks_x = launch.grid.x / launch.cluster.x, blocks_y = launch.grid.y / launch.cluster.y;
    if (order_state && sigsetjmp(escape, 0) == 0) {  // blocks from the last to the first
        for (unsigned long long n = blocks_x * blocks_y * (launch.grid.z / launch.cluster.z); n-- > 0;)
            run_cluster({(unsigned int)(n % blocks_x) * launch.cluster.x, (unsigned int)(n / blocks_x % blocks_y) * launch.cluster.y,
                         (unsigned int)(n / (blocks_x * blocks_y)) * launch.cluster.z});
    } else if (!order_state && sigsetjmp(escape, 0) == 0) {
        for (unsigned int z = 0; z < launch.grid.z; z += launch.cluster.z)
            for (unsigned int y = 0; y < launch.grid.y; y += launch.cluster.y)
                for (unsigned int x = 0; x < launch.grid.x; x += launch.cluster.x) run_cluster({x, y, z});
    } else {  // every stack is where the fault left it
        free_stacks = stacks;
        for (Stack* stack : stacks) {
            stack->thread = nullptr;
            prepare(stack);
        }
    }
    in_kernel = 0;
    current = nullptr;
    return fault_code;
}

}  // namespace machine

using namespace machine;

extern "C" {

void emulated_barrier(unsigned int id, int wanted, int line) {
    if (id >= 16) fault(715, "barrier %u does not exist", id);
    Block& block = *current->block;
    Barrier& barrier = block.barriers[id];
    idle_polls = 0;
    if (barrier.here && barrier.expected != wanted)
        fault(719, "threads meet at barrier %u with different counts, %d and %d", id, barrier.expected, wanted);
    if (barrier.here && line && barrier.line && barrier.line != line)
        fault(719, "threads of block (%u, %u, %u) wait at different __syncthreads, lines %d and %d", block.index.x, block.index.y,
              block.index.z, barrier.line, line);
    barrier.expected = wanted;
    barrier.line = line;
    barrier.here++;
    barrier.threads.push_back(current);
    if (full(block, barrier)) {
        release(block, barrier);
        go_on();
    } else {
        wait("a barrier of the block", line);
    }
}

void emulated_barrier_arrive(unsigned int id, int wanted) {
    Block& block = *current->block;
    Barrier& barrier = block.barriers[id];
    idle_polls = 0;
    barrier.expected = wanted;
    barrier.line = 0;
    barrier.here++;
    if (full(block, barrier)) release(block, barrier);
}

int emulated_barrier_reduce(int value, int kind, int line) {
    Block& block = *current->block;
    Barrier& barrier = block.barriers[0];
    int result = 0;
    idle_polls = 0;
    barrier.expected = -1;
    barrier.line = line;
    barrier.kind = kind;
    barrier.count += value != 0;
    barrier.all = barrier.all && value;
    barrier.any = barrier.any || value;
    barrier.results.push_back(&result);
    barrier.here++;
    barrier.threads.push_back(current);
    if (full(block, barrier)) release(block, barrier);
    else wait("a barrier of the block", line);
    return result;
}

void emulated_warp(unsigned int mask, Collective act, void* mine, const void* shared, const char* what) {
    Warp& warp = current->block->warps[current->number / 32];
    const unsigned int lane = current->number % 32;
    idle_polls = 0;
    if (!(mask >> lane & 1)) fault(719, "lane %u is not in its own mask %08x (%s)", lane, mask, what);
    Meeting* meeting = nullptr;
    for (Meeting& m : warp.meetings) {
        if (m.here && m.mask == mask) meeting = &m;
        else if (m.here && m.mask & mask & ~m.here & (1u << lane)) {  // expected elsewhere
            fault(719, "lane %u comes to %s with mask %08x; others wait for it with mask %08x", lane, what, mask, m.mask);
        }
    }
    for (Meeting& m : warp.meetings) {
        if (!meeting && !m.here) meeting = &m;
    }
    if (!meeting) fault(719, "a warp in too many parts");
    if (!meeting->here) {
        meeting->mask = mask;
        meeting->act = act;
        meeting->shared = shared;
        memset(meeting->mine, 0, sizeof meeting->mine);
    } else if (meeting->act != act) {
        fault(719, "lanes of a warp meet in different operations: lane %u comes to %s", lane, what);
    }
    meeting->mine[lane] = mine;
    meeting->threads[lane] = current;
    meeting->here |= 1u << lane;
    if (complete(warp, *meeting)) go_on();
    else wait(what);
}

void emulated_warpgroup(Collective act, void* mine, const void* shared, const char* what) {
    Warpgroup& group = current->block->warpgroups[current->number / 128];
    const unsigned int lane = current->number % 128;
    idle_polls = 0;
    if (group.here && group.act != act) fault(719, "threads of a warpgroup meet in different operations (%s)", what);
    group.act = act;
    group.mine[lane] = mine;
    group.threads[lane] = current;
    if (++group.here < 128) {
        wait(what);
        return;
    }
    group.here = 0;
    act(group.mine, 128, shared);
    for (Thread* thread : group.threads) wake(thread);
}

namespace {
struct Shuffled {
    unsigned long long value, result;
    int source;
};
void shuffle(void** lanes, unsigned int count, const void*) {
    for (unsigned int i = 0; i < count; i++) {
        Shuffled* mine = (Shuffled*)lanes[i];
        if (!mine) continue;
        const Shuffled* other = (Shuffled*)lanes[mine->source & 31];
        mine->result = other ? other->value : 0xfff7fff7fff7fff7ull;  // of a lane that is not there: anything, here a NaN
    }
}
}  // namespace

unsigned long long emulated_shuffle(unsigned int mask, unsigned long long value, int source_lane) {
    Shuffled mine{value, 0, source_lane};
    emulated_warp(mask, shuffle, &mine, nullptr, "a shuffle");
    return mine.result;
}

unsigned int emulated_active() { return current->block->warps[current->number / 32].alive; }

void emulated_cluster_barrier(bool arrive, bool wait_too) {
    idle_polls = 0;
    if (arrive) {
        current->cluster_phase = cluster_phase;
        cluster_arrived++;
        check_cluster();
    }
    if (!wait_too) return;
    while (cluster_phase == current->cluster_phase) {
        current->waiting = "the barrier of the cluster";
        poll();
    }
}

char* emulated_place_shared(unsigned int* module_bytes, unsigned int* offset, unsigned int size, unsigned int alignment) {
    if (!*offset) {  // static variables grow down from the end of the window
        const unsigned int from = (SHARED_BYTES - *module_bytes - size) & ~(alignment - 1);
        *offset = from;
        *module_bytes = SHARED_BYTES - from;
        if (*module_bytes > 48 * 1024) fault(701, "__shared__ variables of %u bytes; at most 48 KB", *module_bytes);
        for (Block& block : blocks) memset(block.shared + from, 0xff, size);
    }
    if (*module_bytes + launch_now->shared_bytes > 227 * 1024) fault(701, "more than 227 KB of shared memory");
    return emulated_shared + *offset;
}

char* emulated_dynamic_shared(unsigned int alignment) {
    // Aligned as declared and no better: who needs more must see to it.
    return emulated_shared + RESERVED + (alignment >= RESERVED ? 0 : alignment < 16 ? 16 : alignment);
}

unsigned int emulated_shared_address(const void* pointer) {
    const uintptr_t offset = (const char*)pointer - windows;
    if (offset >= (uintptr_t)WINDOW * MOST_CLUSTER) fault(717, "%p is not in shared memory", pointer);
    if (offset / WINDOW == (uintptr_t)(emulated_shared - windows) / WINDOW) return offset % WINDOW;
    return offset % WINDOW | (unsigned int)(offset / WINDOW + 1) << 24;
}

char* emulated_shared_pointer(unsigned int address, unsigned int bytes) {
    const unsigned int rank = address >> 24, offset = address & (WINDOW - 1);
    if (offset < RESERVED || offset + bytes > SHARED_BYTES) fault(700, "shared address %#x (%u bytes) is outside shared memory", address, bytes);
    if (bytes && offset & ((bytes & -bytes) < 16 ? (bytes & -bytes) - 1 : 15)) fault(716, "shared address %#x is not aligned for %u bytes", address, bytes);
    return (rank ? windows + (size_t)(rank - 1) * WINDOW : emulated_shared) + offset;
}

unsigned int emulated_block_rank() { return current->block->rank; }

void emulated_trap(const char* what) { fault(719, "%s in thread %u of block (%u, %u, %u)", what, current->number, emulated_block.x, emulated_block.y, emulated_block.z); }
}
