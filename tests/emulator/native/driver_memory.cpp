// Devices, contexts and memory of the fake driver.
#include "driver.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <sys/mman.h>

std::recursive_mutex lock;
thread_local Context* current_context;
bool initialized;
std::vector<Context> contexts;

const char* setting(const char* name, const char* otherwise) {
    const char* value = getenv(name);
    return value && *value ? value : otherwise;
}

void say(const char* text) { fprintf(stderr, "emulated CUDA device: %s\n", text); }

namespace {

constexpr size_t PAGE = 4096;
constexpr uint64_t SPACE = 1ull << 36;  // addresses of a device

struct Allocation {
    size_t bytes, pages;  // asked for, mapped
    uint64_t first_page;
    struct Pool* pool;
};

struct Pool {
    int device;
    uint64_t threshold = 0, used = 0, used_high = 0, reserved_high = 0;
    int follow = 1, opportunistic = 1, internal = 1;
};

struct Memory {
    uint64_t base = 0, high = 0;
    size_t total = 0, used = 0;
    std::map<uint64_t, Allocation> live;  // by address
    std::multimap<size_t, uint64_t> holes;  // pages that were given back, by size in bytes
    Pool pool, *current = &pool;
};

std::vector<Memory> memories;
int open_count;
std::map<uint64_t, std::pair<size_t, bool>> host_memory;  // registered or allocated by the driver -> (bytes, owned)

bool protect() {
    static const bool wanted = *setting("EMULATED_PROTECTION", "1") != '0';
    return wanted;
}

void set_access(int access) {
    for (Memory& memory : memories) {
        if (memory.live.size() <= 64) {
            for (auto& [address, a] : memory.live) mprotect((void*)a.first_page, a.pages, access);
        } else {
            mprotect((void*)memory.base, memory.high - memory.base, access);
        }
    }
}

Result allocate(Memory& memory, size_t bytes, Pool* pool, uint64_t* address) {
    if (!bytes) return INVALID_VALUE;
    const size_t rounded = (bytes + 511) & ~(size_t)511, pages = (rounded + PAGE - 1) & ~(PAGE - 1);
    if (memory.used + pages > memory.total) return OUT_OF_MEMORY;
    uint64_t page;
    auto hole = memory.holes.find(pages);
    if (hole != memory.holes.end()) {
        page = hole->second;
        memory.holes.erase(hole);
    } else {
        page = memory.high;
        if (page + pages + PAGE > memory.base + SPACE) return OUT_OF_MEMORY;
        memory.high += pages + PAGE;  // one page between neighbours is never accessible
    }
    // The end of the allocation is the end of a page, so that a kernel that runs over it is caught.
    *address = page + pages - rounded;
    memory.live[*address] = {bytes, pages, page, pool};
    memory.used += pages;
    if (pool) {
        pool->used += pages;
        pool->used_high = std::max(pool->used_high, pool->used);
    }
    const bool accessible = open_count || !protect();
    mprotect((void*)page, pages, PROT_READ | PROT_WRITE);
    memset((void*)page, 0xff, std::min<size_t>(pages, 64 << 20));  // fresh memory is anything: here NaN
    if (!accessible) mprotect((void*)page, pages, PROT_NONE);
    return SUCCESS;
}

Result release(uint64_t address) {
    for (Memory& memory : memories) {
        auto found = memory.live.find(address);
        if (found == memory.live.end()) continue;
        const Allocation a = found->second;
        memory.live.erase(found);
        memory.used -= a.pages;
        if (a.pool) a.pool->used -= a.pages;
        madvise((void*)a.first_page, a.pages, MADV_DONTNEED);
        mprotect((void*)a.first_page, a.pages, PROT_NONE);
        memory.holes.insert({a.pages, a.first_page});
        return SUCCESS;
    }
    return INVALID_VALUE;
}

const std::map<uint64_t, Allocation>::iterator* found_allocation(uint64_t address, Memory** in) {
    static std::map<uint64_t, Allocation>::iterator at;
    for (Memory& memory : memories) {
        if (address < memory.base || address >= memory.high) continue;
        at = memory.live.upper_bound(address);
        if (at == memory.live.begin()) return nullptr;
        --at;
        *in = &memory;
        return address < at->first + std::max<size_t>((at->second.bytes + 511) & ~(size_t)511, 1) ? &at : nullptr;
    }
    return nullptr;
}

int architecture() {
    const char* text = setting("EMULATED_ARCHITECTURE", "sm_80");
    while (*text && (*text < '0' || *text > '9')) text++;
    return atoi(text);
}

}  // namespace

Open::Open() {
    if (!open_count++ && protect()) set_access(PROT_READ | PROT_WRITE);
}
Open::~Open() {
    if (!--open_count && protect()) set_access(PROT_NONE);
}

bool in_arena(uint64_t address) {
    for (Memory& memory : memories) {
        if (address >= memory.base && address < memory.base + SPACE) return true;
    }
    return false;
}

int device_of(uint64_t address) {
    for (size_t i = 0; i < memories.size(); i++) {
        if (address >= memories[i].base && address < memories[i].base + SPACE) return (int)i;
    }
    return -1;
}

bool in_device_memory(uint64_t address, size_t bytes) {
    Memory* memory;
    auto at = found_allocation(address, &memory);
    return at && address + bytes <= (*at)->first + (((*at)->second.bytes + 511) & ~(size_t)511);
}

bool host_registered(uint64_t address) {
    auto at = host_memory.upper_bound(address);
    if (at == host_memory.begin()) return false;
    --at;
    return address < at->first + at->second.first;
}

Result check_context() {
    if (!initialized) return NOT_INITIALIZED;
    return current_context ? SUCCESS : INVALID_CONTEXT;
}

// ------------------------------------------------------------------------------------------------- the driver, devices

API Result cuInit(unsigned int flags) {
    std::lock_guard<std::recursive_mutex> entered(lock);
    if (flags) return INVALID_VALUE;
    const int count = atoi(setting("EMULATED_DEVICES", "2"));
    if (!count) return NO_DEVICE;
    if (initialized) return SUCCESS;
    memories = std::vector<Memory>(count);
    contexts.resize(count);
    for (int i = 0; i < count; i++) {
        contexts[i].device = i;
        void* space = mmap(nullptr, SPACE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (space == MAP_FAILED) return OUT_OF_MEMORY;
        memories[i].base = memories[i].high = (uint64_t)space;
        memories[i].total = (size_t)atoll(setting("EMULATED_MEMORY_MB", "4096")) << 20;
        memories[i].pool.device = i;
        memories[i].current = &memories[i].pool;
        memories[i].high += PAGE;
    }
    initialized = true;
    return SUCCESS;
}

API Result cuDriverGetVersion(int* version) {
    *version = 13000;
    return SUCCESS;
}

#define NEEDS_INIT \
    std::lock_guard<std::recursive_mutex> entered(lock); \
    if (!initialized) return NOT_INITIALIZED

#define NEEDS_DEVICE(device) \
    NEEDS_INIT;              \
    if (device < 0 || device >= (int)memories.size()) return INVALID_DEVICE

API Result cuDeviceGet(int* device, int ordinal) {
    NEEDS_DEVICE(ordinal);
    *device = ordinal;
    return SUCCESS;
}
API Result cuDeviceGetCount(int* count) {
    NEEDS_INIT;
    *count = (int)memories.size();
    return SUCCESS;
}
API Result cuDeviceGetName(char* name, int length, int device) {
    NEEDS_DEVICE(device);
    snprintf(name, length, "Emulated device");
    return SUCCESS;
}
API Result cuDeviceGetUuid_v2(char* uuid, int device) {
    NEEDS_DEVICE(device);
    memset(uuid, device + 1, 16);
    return SUCCESS;
}
API Result cuDeviceGetPCIBusId(char* text, int length, int device) {
    NEEDS_DEVICE(device);
    snprintf(text, length, "0000:%02x:00.0", device + 1);
    return SUCCESS;
}
API Result cuDeviceTotalMem_v2(size_t* bytes, int device) {
    NEEDS_DEVICE(device);
    *bytes = memories[device].total;
    return SUCCESS;
}
API Result cuDeviceComputeCapability(int* major, int* minor, int device) {
    NEEDS_DEVICE(device);
    *major = architecture() / 10;
    *minor = architecture() % 10;
    return SUCCESS;
}
API Result cuDeviceGetAttribute(int* value, int attribute, int device) {
    NEEDS_DEVICE(device);
    const int arch = architecture();
    const int optin = arch >= 90 ? 227 * 1024 : arch >= 80 ? (arch == 80 ? 163 : 99) * 1024 : 64 * 1024;
    switch (attribute) {
        case 1: *value = 1024; break;
        case 2: case 3: *value = 1024; break;
        case 4: *value = 64; break;
        case 5: *value = 2147483647; break;
        case 6: case 7: *value = 65535; break;
        case 8: *value = 48 * 1024; break;
        case 9: *value = 65536; break;
        case 10: *value = 32; break;
        case 12: case 82: *value = 65536; break;
        case 13: *value = 1000000; break;
        case 14: *value = 512; break;
        case 16: *value = atoi(setting("EMULATED_MULTIPROCESSORS", "4")); break;
        case 19: case 31: case 41: case 78: case 79: case 80: case 83: case 95: case 99: case 115: *value = 1; break;
        case 33: *value = device + 1; break;
        case 36: *value = 1000000; break;
        case 37: *value = 256; break;
        case 38: *value = 1 << 20; break;
        case 39: *value = 2048; break;
        case 40: *value = 2; break;
        case 75: *value = arch / 10; break;
        case 76: *value = arch % 10; break;
        case 81: *value = optin + 1024; break;
        case 97: *value = optin; break;
        case 106: *value = 32; break;
        case 111: *value = 1024; break;
        case 120: case 127: *value = arch >= 90; break;
        default: *value = 0;
    }
    return SUCCESS;
}
API Result cuDeviceCanAccessPeer(int* can, int device, int peer) {
    NEEDS_DEVICE(device);
    *can = device != peer;
    return SUCCESS;
}
API Result cuDeviceGetP2PAttribute(int* value, int, int, int) { return *value = 1, SUCCESS; }
API Result cuCtxEnablePeerAccess(Context*, unsigned int) { return SUCCESS; }
API Result cuCtxDisablePeerAccess(Context*) { return SUCCESS; }

// ------------------------------------------------------------------------------------------------------------ contexts

API Result cuDevicePrimaryCtxRetain(Context** context, int device) {
    NEEDS_DEVICE(device);
    contexts[device].retained++;
    *context = &contexts[device];
    return SUCCESS;
}
API Result cuDevicePrimaryCtxRelease_v2(int device) {
    NEEDS_DEVICE(device);
    if (!contexts[device].retained) return INVALID_CONTEXT;
    contexts[device].retained--;
    return SUCCESS;
}
API Result cuDevicePrimaryCtxReset_v2(int device) {
    NEEDS_DEVICE(device);
    std::vector<uint64_t> all;
    for (auto& [address, a] : memories[device].live) all.push_back(address);
    for (uint64_t address : all) release(address);
    return SUCCESS;
}
API Result cuDevicePrimaryCtxSetFlags_v2(int, unsigned int) { return SUCCESS; }
API Result cuDevicePrimaryCtxGetState(int device, unsigned int* flags, int* active) {
    NEEDS_DEVICE(device);
    *flags = 0;
    *active = contexts[device].retained > 0;
    return SUCCESS;
}
API Result cuCtxSetCurrent(Context* context) {
    NEEDS_INIT;
    current_context = context;
    return SUCCESS;
}
API Result cuCtxGetCurrent(Context** context) {
    NEEDS_INIT;
    *context = current_context;
    return SUCCESS;
}
static thread_local std::vector<Context*> pushed;
API Result cuCtxPushCurrent_v2(Context* context) {
    NEEDS_INIT;
    pushed.push_back(current_context);
    current_context = context;
    return SUCCESS;
}
API Result cuCtxPopCurrent_v2(Context** context) {
    NEEDS_INIT;
    if (pushed.empty()) return INVALID_CONTEXT;
    if (context) *context = current_context;
    current_context = pushed.back();
    pushed.pop_back();
    return SUCCESS;
}
API Result cuCtxGetDevice(int* device) {
    ENTER;
    *device = current_context->device;
    return SUCCESS;
}
API Result cuCtxGetApiVersion(Context*, unsigned int* version) { return *version = 13000, SUCCESS; }
API Result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    ENTER;
    *least = 0;
    *greatest = -5;
    return SUCCESS;
}
API Result cuCtxSetLimit(int, size_t) { return SUCCESS; }
API Result cuCtxGetLimit(size_t* value, int) { return *value = 1024, SUCCESS; }

// -------------------------------------------------------------------------------------------------------------- memory

API Result cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
    ENTER;
    const Memory& memory = memories[current_context->device];
    *total = memory.total;
    *free_bytes = memory.total - memory.used;
    return SUCCESS;
}
API Result cuMemAlloc_v2(uint64_t* address, size_t bytes) {
    ENTER;
    return allocate(memories[current_context->device], bytes, nullptr, address);
}
API Result cuMemFree_v2(uint64_t address) {
    ENTER;
    return address ? release(address) : SUCCESS;
}
API Result cuMemAllocManaged(uint64_t* address, size_t bytes, unsigned int) {
    ENTER;
    *address = (uint64_t)aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
    host_memory[*address] = {bytes, true};
    return SUCCESS;
}
API Result cuMemAllocAsync(uint64_t* address, size_t bytes, void* stream) {
    ENTER;
    Stream* s = stream_of(stream);
    if (!s) return INVALID_HANDLE;
    if (s->capture) {
        say("allocations inside a captured stream are not emulated");
        return CAPTURE_UNSUPPORTED;
    }
    Memory& memory = memories[s->device];
    return allocate(memory, bytes, memory.current, address);
}
API Result cuMemFreeAsync(uint64_t address, void* stream) {
    ENTER;
    Stream* s = stream_of(stream);
    if (!s) return INVALID_HANDLE;
    if (s->capture) {
        say("frees inside a captured stream are not emulated");
        return CAPTURE_UNSUPPORTED;
    }
    return address ? release(address) : SUCCESS;
}
API Result cuMemAllocFromPoolAsync(uint64_t* address, size_t bytes, Pool* pool, void*) {
    ENTER;
    return allocate(memories[pool->device], bytes, pool, address);
}
API Result cuDeviceGetDefaultMemPool(Pool** pool, int device) {
    NEEDS_DEVICE(device);
    *pool = &memories[device].pool;
    return SUCCESS;
}
API Result cuDeviceGetMemPool(Pool** pool, int device) {
    NEEDS_DEVICE(device);
    *pool = memories[device].current;
    return SUCCESS;
}
API Result cuDeviceSetMemPool(int device, Pool* pool) {
    NEEDS_DEVICE(device);
    memories[device].current = pool;
    return SUCCESS;
}
struct PoolProperties {
    int allocation_type, handle_types, location_type, location_id;
};
API Result cuMemPoolCreate(Pool** pool, const PoolProperties* properties) {
    NEEDS_DEVICE(properties->location_id);
    *pool = new Pool{properties->location_id};
    return SUCCESS;
}
API Result cuMemPoolDestroy(Pool* pool) {
    NEEDS_INIT;
    delete pool;
    return SUCCESS;
}
API Result cuMemPoolTrimTo(Pool*, size_t) { return SUCCESS; }
API Result cuMemPoolSetAccess(Pool*, const void*, size_t) { return SUCCESS; }
API Result cuMemPoolSetAttribute(Pool* pool, int attribute, void* value) {
    NEEDS_INIT;
    switch (attribute) {
        case 1: pool->follow = *(int*)value; break;
        case 2: pool->opportunistic = *(int*)value; break;
        case 3: pool->internal = *(int*)value; break;
        case 4: pool->threshold = *(uint64_t*)value; break;
        case 6: pool->reserved_high = *(uint64_t*)value; break;
        case 8: pool->used_high = *(uint64_t*)value; break;
        default: return INVALID_VALUE;
    }
    return SUCCESS;
}
API Result cuMemPoolGetAttribute(Pool* pool, int attribute, void* value) {
    NEEDS_INIT;
    switch (attribute) {
        case 1: *(int*)value = pool->follow; break;
        case 2: *(int*)value = pool->opportunistic; break;
        case 3: *(int*)value = pool->internal; break;
        case 4: *(uint64_t*)value = pool->threshold; break;
        case 5: case 7: *(uint64_t*)value = pool->used; break;
        case 6: case 8: *(uint64_t*)value = pool->used_high; break;
        default: return INVALID_VALUE;
    }
    return SUCCESS;
}
API Result cuMemGetAddressRange_v2(uint64_t* base, size_t* size, uint64_t address) {
    ENTER;
    Memory* memory;
    auto at = found_allocation(address, &memory);
    if (!at) return NOT_FOUND;
    if (base) *base = (*at)->first;
    if (size) *size = (*at)->second.bytes;
    return SUCCESS;
}

API Result cuMemHostAlloc(void** pointer, size_t bytes, unsigned int) {
    ENTER;
    if (!bytes) return INVALID_VALUE;
    *pointer = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
    memset(*pointer, 0xff, bytes);
    host_memory[(uint64_t)*pointer] = {bytes, true};
    return SUCCESS;
}
API Result cuMemAllocHost_v2(void** pointer, size_t bytes) { return cuMemHostAlloc(pointer, bytes, 0); }
API Result cuMemFreeHost(void* pointer) {
    ENTER;
    auto at = host_memory.find((uint64_t)pointer);
    if (at == host_memory.end() || !at->second.second) return INVALID_VALUE;
    host_memory.erase(at);
    free(pointer);
    return SUCCESS;
}
API Result cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned int) {
    ENTER;
    if (host_registered((uint64_t)pointer)) return 712;
    host_memory[(uint64_t)pointer] = {bytes, false};
    return SUCCESS;
}
API Result cuMemHostUnregister(void* pointer) {
    ENTER;
    auto at = host_memory.find((uint64_t)pointer);
    if (at == host_memory.end() || at->second.second) return 713;
    host_memory.erase(at);
    return SUCCESS;
}
API Result cuMemHostGetDevicePointer_v2(uint64_t* address, void* pointer, unsigned int) {
    ENTER;
    if (!host_registered((uint64_t)pointer)) return INVALID_VALUE;
    *address = (uint64_t)pointer;
    return SUCCESS;
}
API Result cuMemHostGetFlags(unsigned int* flags, void* pointer) {
    ENTER;
    if (!host_registered((uint64_t)pointer)) return INVALID_VALUE;
    *flags = 3;
    return SUCCESS;
}

API Result cuPointerGetAttribute(void* data, int attribute, uint64_t address) {
    ENTER;
    Memory* memory;
    auto at = found_allocation(address, &memory);
    const bool host = host_registered(address);
    if (!at && !host) return INVALID_VALUE;
    switch (attribute) {
        case 1: *(Context**)data = at ? &contexts[device_of(address)] : current_context; break;
        case 2: *(unsigned int*)data = at ? 2 : 1; break;
        case 3: *(uint64_t*)data = address; break;
        case 4:
            if (at) return INVALID_VALUE;
            *(uint64_t*)data = address;
            break;
        case 8: *(unsigned int*)data = 0; break;
        case 9: *(int*)data = at ? device_of(address) : current_context->device; break;
        case 11: *(uint64_t*)data = at ? (*at)->first : address; break;
        case 12: *(size_t*)data = at ? (*at)->second.bytes : 0; break;
        case 13: *(int*)data = 1; break;
        default: return NOT_SUPPORTED;
    }
    return SUCCESS;
}

API Result cuPointerGetAttributes(unsigned int count, int* attributes, void** data, uint64_t address) {
    for (unsigned int i = 0; i < count; i++) {
        if (cuPointerGetAttribute(data[i], attributes[i], address)) memset(data[i], 0, 4);  // the rest is zero already
    }
    return SUCCESS;
}

// --------------------------------------------------------------------------------------------- errors and entry points

static const std::map<int, std::pair<const char*, const char*>>& errors() {
    static const std::map<int, std::pair<const char*, const char*>> known = {
        {0, {"CUDA_SUCCESS", "no error"}},
        {1, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
        {2, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
        {3, {"CUDA_ERROR_NOT_INITIALIZED", "initialization error"}},
        {100, {"CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"}},
        {101, {"CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"}},
        {200, {"CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"}},
        {201, {"CUDA_ERROR_INVALID_CONTEXT", "invalid device context"}},
        {209, {"CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"}},
        {400, {"CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"}},
        {500, {"CUDA_ERROR_NOT_FOUND", "named symbol not found"}},
        {600, {"CUDA_ERROR_NOT_READY", "device not ready"}},
        {700, {"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"}},
        {701, {"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"}},
        {712, {"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"}},
        {713, {"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"}},
        {715, {"CUDA_ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered"}},
        {716, {"CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"}},
        {717, {"CUDA_ERROR_INVALID_ADDRESS_SPACE", "operation not supported on global/shared address space"}},
        {719, {"CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"}},
        {801, {"CUDA_ERROR_NOT_SUPPORTED", "operation not supported"}},
        {900, {"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"}},
        {901, {"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"}},
        {903, {"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began"}},
        {904, {"CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"}},
        {906, {"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream"}},
        {908, {"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a thread-local capture sequence from another thread"}},
        {720, {"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch"}},
        {912, {"CUDA_ERROR_INVALID_CLUSTER_SIZE", "cluster misconfiguration"}},
    };
    return known;
}
API Result cuGetErrorName(int code, const char** text) {
    auto found = errors().find(code);
    *text = found == errors().end() ? nullptr : found->second.first;
    return *text ? SUCCESS : INVALID_VALUE;
}
API Result cuGetErrorString(int code, const char** text) {
    auto found = errors().find(code);
    *text = found == errors().end() ? nullptr : found->second.second;
    return *text ? SUCCESS : INVALID_VALUE;
}

// NVRTC asks for tables of what is not in the driver's interface, and does without where there are none.
API Result cuGetExportTable(const void** table, const void*) {
    *table = nullptr;
    return NOT_FOUND;
}

API Result cuGetProcAddress_v2(const char* symbol, void** function, int, uint64_t, int* status) {
    static void* self = [] {
        Dl_info info;
        dladdr((void*)cuInit, &info);
        return dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    }();
    *function = nullptr;
    for (const char* suffix : {"_v4", "_v3", "_v2", ""}) {
        *function = dlsym(self, (std::string(symbol) + suffix).c_str());
        if (*function) break;
    }
    if (status) *status = *function ? 0 : 1;
    return *function ? SUCCESS : NOT_FOUND;
}
