// Asynchronous copies and mbarriers. Copies of cp.async are done when they are waited for, those of tensor maps when a
// thread looks for them in vain: who reads without waiting finds what was there before.
#include <cstring>
#include <deque>
#include <vector>

#include "machine.h"
#include "tensor_maps.h"

namespace machine {
extern void (*at_poll)();       // called when a thread polls in vain
extern void (*at_launch)();     // called before a cluster of blocks starts
extern void (*at_end)();        // called when all its threads have returned
unsigned long long thread_key();  // of the running thread, unique in its cluster
}  // namespace machine

using namespace machine;

namespace {

struct Copy {
    char* to;
    const char* from;
    unsigned int size, read;
};
struct Queue {
    std::vector<std::vector<Copy>> groups;  // committed, oldest first
    std::vector<Copy> open;
};
std::vector<Queue> queues;  // of threads

Queue& mine() {
    const unsigned long long key = thread_key();
    if (key >= queues.size()) queues.resize(key + 1);
    return queues[key];
}

void perform(const std::vector<Copy>& copies) {
    for (const Copy& c : copies) {
        memcpy(c.to, c.from, c.read);
        memset(c.to + c.read, 0, c.size - c.read);
    }
}

// A barrier's word: phase (1 bit), threads that are awaited of (20) and still in this phase (20), bytes awaited (21, signed).
struct Phase {
    unsigned int phase, all, pending;
    int bytes;
};
Phase read(const char* at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return {(unsigned int)(word >> 63), (unsigned int)(word >> 43 & 0xfffff), (unsigned int)(word >> 22 & 0xfffff),
            (int)((int64_t)(word << 42) >> 42)};
}
void write(char* at, Phase p) {
    if (!p.pending && !p.bytes) {
        p.phase ^= 1;
        p.pending = p.all;
        progress();
    }
    const uint64_t word = (uint64_t)p.phase << 63 | (uint64_t)p.all << 43 | (uint64_t)p.pending << 22 | ((uint64_t)(int64_t)p.bytes & 0x3fffff);
    memcpy(at, &word, 8);
}
char* barrier_at(unsigned int address) {
    char* at = emulated_shared_pointer(address, 8);
    uint64_t word;
    memcpy(&word, at, 8);
    if (word == ~0ull) fault(719, "an mbarrier at %#x that was not initialised", address);
    return at;
}
void complete(char* at, unsigned int bytes) {
    Phase p = read(at);
    p.bytes -= (int)bytes;
    write(at, p);
}

struct Load {  // of a box of a tensor, or of bytes
    char* to;
    unsigned int window;  // offset of `to` in its shared memory
    EmulatedTensorMap map;
    int at[5];
    const char* from;
    unsigned int size;
    char* barrier;
};
std::deque<Load> loads;

unsigned int swizzled(unsigned int mode, unsigned int offset) {
    if (mode == 3) return offset ^ ((offset >> 7 & 7) << 4);
    if (mode == 2) return offset ^ ((offset >> 7 & 3) << 4);
    if (mode == 1) return offset ^ ((offset >> 7 & 1) << 4);
    return offset;
}

// Every element of a box: its place in shared memory, and in the tensor (null outside).
template <typename F> unsigned int each(const EmulatedTensorMap& map, const int* at, F act) {
    unsigned int total = 1, index[5] = {};
    for (int i = 0; i < map.rank; i++) total *= map.box[i] + 1u;
    for (unsigned int n = 0; n < total; n++) {
        uint64_t address = map.address;
        bool inside = true;
        for (int i = 0; i < map.rank; i++) {
            const int64_t place = (int64_t)at[i] + index[i];
            inside = inside && place >= 0 && place <= (int64_t)map.extents[i];
            address += (uint64_t)place * (i ? map.strides[i - 1] : map.element);
        }
        act(n * map.element, inside ? (char*)address : nullptr);
        for (int i = 0; i < map.rank && ++index[i] > map.box[i]; i++) index[i] = 0;
    }
    return total * map.element;
}

void perform(Load& load) {
    unsigned int bytes = load.size;
    if (load.from) {
        memcpy(load.to, load.from, load.size);
    } else {
        bytes = each(load.map, load.at, [&](unsigned int offset, const char* from) {
            char* to = load.to - load.window + swizzled(load.map.swizzle, load.window + offset);
            if (from) memcpy(to, from, load.map.element);
            else memset(to, load.map.nan_fill ? 0xff : 0, load.map.element);
        });
    }
    complete(load.barrier, bytes);
}

void perform_loads() {
    while (!loads.empty()) {
        Load load = loads.front();
        loads.pop_front();
        perform(load);
    }
}
void begin() {
    queues.clear();
    loads.clear();
    at_poll = perform_loads;
}
void end() {
    if (!loads.empty()) fault(719, "the blocks ended before copies into their shared memory were waited for");
}
struct Register {
    Register() {
        at_launch = begin;
        at_end = end;
    }
} registered;

const EmulatedTensorMap& map_at(uint64_t address, int rank) {
    const EmulatedTensorMap& map = *(const EmulatedTensorMap*)address;
    if (address % 64) fault(716, "a tensor map at %#lx, which is no multiple of 64", (unsigned long)address);
    if (map.magic != EmulatedTensorMap::MAGIC) fault(719, "what lies at %#lx is no tensor map", (unsigned long)address);
    if (map.rank != rank) fault(719, "a copy of %d axes by a tensor map of %d", rank, map.rank);
    return map;
}

}  // namespace

extern "C" {

void ptx_copy(unsigned int to, const void* from, unsigned int size, unsigned int read_bytes, bool only_16) {
    if ((size != 4 && size != 8 && size != 16) || (only_16 && size != 16)) fault(715, "cp.async of %u bytes", size);
    if (read_bytes > size) fault(719, "cp.async reads %u of %u bytes", read_bytes, size);
    if ((uintptr_t)from % size) fault(716, "cp.async of %u bytes from %p", size, from);
    mine().open.push_back({emulated_shared_pointer(to, size), (const char*)from, size, read_bytes});
}
void ptx_copy_commit() {
    Queue& q = mine();
    q.groups.push_back(std::move(q.open));
    q.open.clear();
}
void ptx_copy_wait(int pending) {
    Queue& q = mine();
    if (pending < 0) {
        ptx_copy_commit();
        pending = 0;
    }
    while (q.groups.size() > (size_t)pending) {
        perform(q.groups.front());
        q.groups.erase(q.groups.begin());
    }
}
void ptx_copy_arrive(unsigned int barrier, bool counted) {
    ptx_copy_wait(-1);
    char* at = barrier_at(barrier);
    Phase p = read(at);
    if (!counted) {
        if (!p.pending) fault(719, "more threads arrive at an mbarrier than it counts");
        p.pending--;
    }
    write(at, p);
}

void ptx_mbarrier_init(unsigned int barrier, unsigned int count) {
    if (!count || count > 0xfffff) fault(719, "an mbarrier for %u arrivals", count);
    char* at = emulated_shared_pointer(barrier, 8);
    write(at, {0, count, count, 0});
}
void ptx_mbarrier_end(unsigned int barrier) { memset(emulated_shared_pointer(barrier, 8), 0xff, 8); }
unsigned long long ptx_mbarrier_arrive(unsigned int barrier, unsigned int count, unsigned int expected) {
    char* at = barrier_at(barrier);
    uint64_t before;
    memcpy(&before, at, 8);
    Phase p = read(at);
    if (count > p.pending) fault(719, "more threads arrive at the mbarrier at %#x than it counts (%u)", barrier, p.all);
    p.pending -= count;
    p.bytes += (int)expected;
    if (p.bytes >= 1 << 20) fault(719, "an mbarrier that waits for more than 2^20 - 1 bytes");
    write(at, p);
    return before;
}
bool ptx_mbarrier_over(unsigned int barrier, unsigned int parity) {
    if (parity > 1) fault(719, "an mbarrier's parity is 0 or 1, not %u", parity);
    char* at = barrier_at(barrier);
    if (read(at).phase != parity) return true;
    poll();
    return read(at).phase != parity;
}

void ptx_tensor_load(unsigned int to, unsigned long long map, int rank, const int* at, unsigned int barrier, unsigned int blocks) {
    if (to & 127) fault(716, "a tensor is copied to shared address %#x, which is no multiple of 128", to);
    for (unsigned int rank_of = 0; rank_of < 16; rank_of++) {
        if (blocks ? !(blocks >> rank_of & 1) : rank_of > 0) continue;
        const unsigned int target = blocks ? (to & 0xffffff) | (rank_of + 1) << 24 : to;
        const unsigned int signal = blocks ? (barrier & 0xffffff) | (rank_of + 1) << 24 : barrier;
        Load load{emulated_shared_pointer(target, 0), to & 0xffffff, map_at(map, rank), {}, nullptr, 0, barrier_at(signal)};
        memcpy(load.at, at, rank * sizeof(int));
        unsigned int bytes = load.map.element;
        for (int i = 0; i < rank; i++) bytes *= load.map.box[i] + 1u;
        if ((to & 0xffffff) + bytes > SHARED_BYTES) fault(700, "a tensor is copied outside shared memory");
        loads.push_back(load);
    }
    progress();
}
void ptx_tensor_store(unsigned long long map, int rank, const int* at, unsigned int from) {
    if (from & 127) fault(716, "a tensor is copied from shared address %#x, which is no multiple of 128", from);
    const EmulatedTensorMap& m = map_at(map, rank);
    const char* shared = emulated_shared_pointer(from, 0);
    const unsigned int window = from & 0xffffff;
    each(m, at, [&](unsigned int offset, char* to) {
        if (to) memcpy(to, shared - window + swizzled(m.swizzle, window + offset), m.element);
    });
}
void ptx_bulk_load(unsigned int to, const void* from, unsigned int size, unsigned int barrier) {
    if (to % 16 || (uintptr_t)from % 16 || size % 16) fault(716, "cp.async.bulk of %u bytes from %p to %#x", size, from, to);
    emulated_shared_pointer(to & 0xffffff, size & ~15u);
    Load load{emulated_shared_pointer(to, 0), to & 0xffffff, {}, {}, (const char*)from, size, barrier_at(barrier)};
    loads.push_back(load);
}
void ptx_bulk_store(void* to, unsigned int from, unsigned int size) {
    if (from % 16 || (uintptr_t)to % 16 || size % 16) fault(716, "cp.async.bulk of %u bytes from %#x to %p", size, from, to);
    memcpy(to, emulated_shared_pointer(from, 0), size);
}
}
