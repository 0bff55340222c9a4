// The emulated machine: blocks of fibers, warps, barriers, shared memory. Linked into the fake driver; kernels call it.
#pragma once
#include <cstddef>
#include <cstdint>

struct Index3 {
    unsigned int x, y, z;
};

// What translate.py appends to a kernel's text: one row an entry, ended by a row without a name.
struct EmulatedKernel {
    const char* name;
    void (*call)(void** arguments);
    unsigned int parameters;
    const unsigned int* sizes;  // bytes of every parameter
    unsigned int most_threads;  // __launch_bounds__, 0 for none
};

namespace machine {

constexpr unsigned int WINDOW = 1u << 24;  // addresses between the shared memories of two blocks of a cluster
constexpr unsigned int SHARED_BYTES = 256 * 1024;  // of a window that are memory
constexpr unsigned int RESERVED = 1024;  // the first bytes of shared memory belong to the system
constexpr unsigned int MOST_CLUSTER = 16;

struct Launch {
    const EmulatedKernel* kernel;
    Index3 grid, block, cluster;
    unsigned int shared_bytes;
    void** arguments;
    const unsigned int* static_bytes;  // what the module's __shared__ variables take, known after their first use
};

// Runs all blocks. 0, or a CUresult; `fault_text` then says what happened.
int run(const Launch& launch);
extern thread_local char fault_text[4096];

[[noreturn]] void fault(int code, const char* format, ...);  // ends the kernel that runs
unsigned int thread_in_block();
void poll();  // a thread looks in vain for something: let others work; a deadlock if none can
void progress();  // what a poll looks for may have changed
typedef void (*Collective)(void** lanes, unsigned int count, const void* shared);

}  // namespace machine

extern "C" {
extern Index3 emulated_thread, emulated_block, emulated_block_size, emulated_grid_size, emulated_cluster_size;
extern char* emulated_shared;  // window of the running thread's block

void emulated_barrier(unsigned int id, int threads, int line);  // threads: -1 for all
void emulated_barrier_arrive(unsigned int id, int threads);
int emulated_barrier_reduce(int value, int kind, int line);  // kind 0: count, 1: and, 2: or
// All living lanes of `mask` meet; the last one runs `act` on what they brought (null for a lane that brought nothing).
void emulated_warp(unsigned int mask, machine::Collective act, void* mine, const void* shared, const char* what);
// The same for the 128 threads of a warpgroup.
void emulated_warpgroup(machine::Collective act, void* mine, const void* shared, const char* what);
unsigned long long emulated_shuffle(unsigned int mask, unsigned long long value, int source_lane);
unsigned int emulated_active();
void emulated_cluster_barrier(bool arrive, bool wait);
char* emulated_place_shared(unsigned int* module_bytes, unsigned int* offset, unsigned int size, unsigned int alignment);
char* emulated_dynamic_shared(unsigned int alignment);
unsigned int emulated_shared_address(const void* pointer);
char* emulated_shared_pointer(unsigned int address, unsigned int bytes);
unsigned int emulated_block_rank();
[[noreturn]] void emulated_trap(const char* what);
}
