// Modules, launches, copies, streams, events and graphs of the fake driver. What is issued is done at once.
#include "driver.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

namespace {

std::vector<std::unique_ptr<Stream>> default_streams;
unsigned long long next_id = 1;
std::vector<Capture*> captures;  // that go on

double now() {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool mapped(uint64_t address) { return msync((void*)(address & ~4095ull), 1, MS_ASYNC) == 0; }

}  // namespace

Stream* stream_of(void* handle) {
    if ((uint64_t)handle > 2) return (Stream*)handle;
    if (!current_context) return nullptr;
    while (default_streams.size() < contexts.size()) {
        default_streams.push_back(std::make_unique<Stream>());
        default_streams.back()->device = (int)default_streams.size() - 1;
    }
    return default_streams[current_context->device].get();
}

// ------------------------------------------------------------------------------------------------------------- modules

API Result cuModuleLoadData(Module** module, const void* image) {
    ENTER;
    const Elf64_Ehdr* header = (const Elf64_Ehdr*)image;
    if (memcmp(header->e_ident, ELFMAG, SELFMAG)) return INVALID_IMAGE;
    if (header->e_machine == 190) {
        say("a real cubin was loaded: it was not compiled through the emulator");
        return NO_BINARY;
    }
    const size_t size = header->e_shoff + (size_t)header->e_shentsize * header->e_shnum;
    char path[] = "/tmp/emulated-XXXXXX";  // a new name for each: a known one would give the module loaded before
    const int file = mkstemp(path);
    if (file < 0) return OUT_OF_MEMORY;
    for (size_t done = 0; done < size;) {
        const ssize_t wrote = write(file, (const char*)image + done, size - done);
        if (wrote <= 0) return OUT_OF_MEMORY;
        done += wrote;
    }
    close(file);
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    unlink(path);
    if (!library) {
        say(dlerror());
        return INVALID_IMAGE;
    }
    auto result = std::make_unique<Module>();
    result->library = library;
    result->static_bytes = *(unsigned int**)dlsym(library, "emulated_module_bytes");
    for (const EmulatedKernel* k = (const EmulatedKernel*)dlsym(library, "emulated_kernels"); k->name; k++) {
        auto& f = result->functions[k->name] = std::make_unique<Function>();
        f->module = result.get();
        f->kernel = k;
    }
    *module = result.release();
    return SUCCESS;
}
API Result cuModuleLoadDataEx(Module** module, const void* image, unsigned int, int*, void**) { return cuModuleLoadData(module, image); }
API Result cuModuleUnload(Module* module) {
    ENTER;
    dlclose(module->library);
    delete module;
    return SUCCESS;
}
API Result cuModuleGetFunction(Function** function, Module* module, const char* name) {
    ENTER;
    auto found = module->functions.find(name);
    if (found == module->functions.end()) return NOT_FOUND;
    *function = found->second.get();
    return SUCCESS;
}
API Result cuModuleGetLoadingMode(int* mode) { return *mode = 2, SUCCESS; }
API Result cuFuncLoad(Function*) { return SUCCESS; }
API Result cuFuncIsLoaded(int* state, Function*) { return *state = 1, SUCCESS; }
API Result cuFuncGetModule(Module** module, Function* function) { return *module = function->module, SUCCESS; }
API Result cuFuncGetName(const char** name, Function* function) { return *name = function->kernel->name, SUCCESS; }
API Result cuFuncSetCacheConfig(Function*, int) { return SUCCESS; }
API Result cuFuncGetParamInfo(Function* function, size_t index, size_t* offset, size_t* size) {
    if (index >= function->kernel->parameters) return INVALID_VALUE;
    size_t at = 0;
    for (size_t i = 0;; i++) {
        const size_t bytes = function->kernel->sizes[i], alignment = bytes >= 128 ? 64 : std::min<size_t>(bytes & -bytes, 8);
        at = (at + alignment - 1) & ~(alignment - 1);
        if (i == index) break;
        at += bytes;
    }
    *offset = at;
    if (size) *size = function->kernel->sizes[index];
    return SUCCESS;
}
static int shared_limit() {
    int optin = 0;
    extern Result cuDeviceGetAttribute(int*, int, int) __asm__("cuDeviceGetAttribute");
    cuDeviceGetAttribute(&optin, 97, 0);
    return optin;
}
API Result cuFuncSetAttribute(Function* function, int attribute, int value) {
    ENTER;
    if (attribute == 8) {
        if (value < 0 || value + (int)*function->module->static_bytes > shared_limit()) return INVALID_VALUE;
        function->dynamic_limit = value;
    }
    if (attribute == 14) function->large_clusters = value != 0;
    return SUCCESS;
}
API Result cuFuncGetAttribute(int* value, int attribute, Function* function) {
    ENTER;
    switch (attribute) {
        case 0: *value = function->kernel->most_threads ? (int)function->kernel->most_threads : 1024; break;
        case 1: *value = *function->module->static_bytes; break;
        case 4: *value = 32; break;
        case 5: case 6: *value = 80; break;
        case 8: *value = function->dynamic_limit; break;
        case 14: *value = function->large_clusters; break;
        default: *value = 0;
    }
    return SUCCESS;
}
API Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function*, int threads, size_t shared) {
    *blocks = std::max(1, std::min(2048 / std::max(threads, 1), shared ? (int)(228 * 1024 / (shared + 1024)) : 32));
    return SUCCESS;
}
API Result cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, Function* f, int threads, size_t shared, unsigned int) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, f, threads, shared);
}

// ------------------------------------------------------------------------------------------------------------ the work

Result check_launch(const Node& n) {
    if (!n.function) return INVALID_HANDLE;
    const Index3 g = n.grid, b = n.block, c = n.cluster;
    if (!g.x || !g.y || !g.z || g.x > 2147483647u || g.y > 65535 || g.z > 65535) return INVALID_VALUE;
    if (!b.x || !b.y || !b.z || b.x > 1024 || b.y > 1024 || b.z > 64 || (size_t)b.x * b.y * b.z > 1024) return INVALID_VALUE;
    const unsigned int most = n.function->kernel->most_threads;
    if (most && b.x * b.y * b.z > most) {
        say("more threads in a block than the kernel's __launch_bounds__");
        return INVALID_VALUE;
    }
    if (n.shared_bytes > n.function->dynamic_limit) {
        say("more dynamic shared memory than the kernel's attribute allows");
        return INVALID_VALUE;
    }
    if (n.together && (c.x * c.y * c.z != 1 || (size_t)g.x * g.y * g.z > machine::MOST_CLUSTER)) {
        say("more blocks of a cooperative launch than the emulator runs at once, or clusters of them");
        return COOPERATIVE_TOO_LARGE;
    }
    const unsigned int size = c.x * c.y * c.z;
    if (!size || g.x % c.x || g.y % c.y || g.z % c.z || size > (n.function->large_clusters ? 16u : 8u)) return INVALID_CLUSTER;
    for (size_t i = 0; i < n.parameters.size(); i++) {  // an address of the host is a mistake that would work here
        for (size_t at = 0; at + 8 <= n.parameters[i].size(); at += 8) {
            uint64_t word;
            memcpy(&word, n.parameters[i].data() + at, 8);
            if (word < 1ull << 40 || word >= 1ull << 47 || in_arena(word) || host_registered(word) || !mapped(word)) continue;
            if (n.parameters[i].size() == 128) continue;  // a tensor map has words of its own
            char text[200];
            snprintf(text, sizeof text, "argument %zu of %s is %#zx, memory of the host that is not registered", i,
                     n.function->kernel->name, (size_t)word);
            say(text);
            return ILLEGAL_ADDRESS;
        }
    }
    return SUCCESS;
}

static bool trace() {
    static const bool wanted = *setting("EMULATED_TRACE", "0") != '0';
    return wanted;
}

Result Node::run() {
    Open open;
    switch (type) {
        case 0: {
            std::vector<void*> pointers;
            size_t total = 64;
            for (auto& p : parameters) total += (p.size() + 127) & ~(size_t)63;
            char* space = (char*)aligned_alloc(64, (total + 63) & ~(size_t)63);
            size_t at = 0;
            for (auto& p : parameters) {
                memcpy(space + at, p.data(), p.size());
                pointers.push_back(space + at);
                at += (p.size() + 127) & ~(size_t)63;
            }
            pointers.push_back(nullptr);
            const double begun = now();
            const int code = machine::run({function->kernel, grid, block, together ? grid : cluster, shared_bytes, pointers.data(), function->module->static_bytes});
            if (trace())
                fprintf(stderr, "%s <<<(%u, %u, %u), (%u, %u, %u), %u>>> %.3f ms\n", function->kernel->name, grid.x, grid.y, grid.z,
                        block.x, block.y, block.z, shared_bytes, now() - begun);
            free(space);
            if (code) {
                char text[4600];
                snprintf(text, sizeof text, "kernel %s: %s", function->kernel->name, machine::fault_text);
                say(text);
            }
            return code;
        }
        case 1:
            memmove((void*)target, (const void*)source, bytes);
            return SUCCESS;
        case 2:
            for (size_t i = 0; i < bytes; i++) memcpy((char*)target + i * element, &value, element);
            return SUCCESS;
        case 3:
            host(data);
            return SUCCESS;
        default:
            return SUCCESS;
    }
}

Result issue(void* handle, std::unique_ptr<Node> node) {
    Stream* stream = stream_of(handle);
    if (!stream) return INVALID_HANDLE;
    if (node->type == 0) {
        if (Result code = check_launch(*node)) return code;
        if (node->function && stream->device != current_context->device) return INVALID_HANDLE;
    }
    auto outside = [](uint64_t address, size_t bytes) { return in_arena(address) && bytes && !in_device_memory(address, bytes); };
    if (node->type == 1 && (outside(node->target, node->bytes) || outside(node->source, node->bytes))) return INVALID_VALUE;
    if (node->type == 2 && outside(node->target, node->bytes * node->element)) return INVALID_VALUE;
    if (!stream->capture) {
        if ((uint64_t)handle <= 1) {
            for (Capture* c : captures) {
                if (c->origin->device == stream->device && !(c->origin->flags & 1)) return c->invalid = true, CAPTURE_IMPLICIT;
            }
        }
        return node->run();
    }
    if (stream->capture->invalid) return CAPTURE_INVALIDATED;
    node->dependencies = stream->last;
    stream->last = {node.get()};
    stream->capture->graph->nodes.push_back(std::move(node));
    return SUCCESS;
}

static std::unique_ptr<Node> kernel_node(Function* f, Index3 grid, Index3 block, unsigned int shared, void** parameters) {
    auto node = std::make_unique<Node>();
    node->type = 0;
    node->function = f;
    node->grid = grid;
    node->block = block;
    node->shared_bytes = shared;
    for (unsigned int i = 0; f && i < f->kernel->parameters; i++) {
        const char* from = (const char*)parameters[i];
        node->parameters.emplace_back(from, from + f->kernel->sizes[i]);
    }
    return node;
}

API Result cuLaunchKernel(Function* f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
                          unsigned int bz, unsigned int shared, void* stream, void** parameters, void** extra) {
    ENTER;
    if (extra) return NOT_SUPPORTED;
    return issue(stream, kernel_node(f, {gx, gy, gz}, {bx, by, bz}, shared, parameters));
}
API Result cuLaunchCooperativeKernel(Function*, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                                     unsigned int, void*, void**) {
    say("cooperative launches are not emulated");
    return NOT_SUPPORTED;
}

struct LaunchAttribute {
    int id;
    char pad[4];
    union {
        char bytes[64];
        struct {
            unsigned int x, y, z;
        } cluster;
        int flag;
    };
};
struct LaunchConfig {
    unsigned int gx, gy, gz, bx, by, bz, shared;
    void* stream;
    LaunchAttribute* attributes;
    unsigned int count;
};
API Result cuLaunchKernelEx(const LaunchConfig* c, Function* f, void** parameters, void** extra) {
    ENTER;
    if (extra) return NOT_SUPPORTED;
    auto node = kernel_node(f, {c->gx, c->gy, c->gz}, {c->bx, c->by, c->bz}, c->shared, parameters);
    for (unsigned int i = 0; i < c->count; i++) {
        const LaunchAttribute& a = c->attributes[i];
        if (a.id == 4) node->cluster = {a.cluster.x, a.cluster.y, a.cluster.z};
        if (a.id == 2) node->together = a.flag != 0;
    }
    return issue(c->stream, std::move(node));
}
API Result cuLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
    ENTER;
    auto node = std::make_unique<Node>();
    node->type = 3;
    node->host = function;
    node->data = data;
    return issue(stream, std::move(node));
}

static Result copy(void* stream, uint64_t target, uint64_t source, size_t bytes) {
    ENTER;
    auto node = std::make_unique<Node>();
    node->type = 1;
    node->target = target;
    node->source = source;
    node->bytes = bytes;
    return issue(stream, std::move(node));
}
#define ON_DEVICE(address) \
    if (bytes && !in_arena(address) && !host_registered(address)) return INVALID_VALUE
#define ON_HOST(address) \
    if (in_arena((uint64_t)address)) return INVALID_VALUE

API Result cuMemcpy(uint64_t target, uint64_t source, size_t bytes) { return copy(nullptr, target, source, bytes); }
API Result cuMemcpyAsync(uint64_t target, uint64_t source, size_t bytes, void* stream) { return copy(stream, target, source, bytes); }
API Result cuMemcpyHtoD_v2(uint64_t target, const void* source, size_t bytes) {
    ON_DEVICE(target);
    ON_HOST(source);
    return copy(nullptr, target, (uint64_t)source, bytes);
}
API Result cuMemcpyHtoDAsync_v2(uint64_t target, const void* source, size_t bytes, void* stream) {
    ON_DEVICE(target);
    ON_HOST(source);
    return copy(stream, target, (uint64_t)source, bytes);
}
API Result cuMemcpyDtoH_v2(void* target, uint64_t source, size_t bytes) {
    ON_DEVICE(source);
    ON_HOST(target);
    return copy(nullptr, (uint64_t)target, source, bytes);
}
API Result cuMemcpyDtoHAsync_v2(void* target, uint64_t source, size_t bytes, void* stream) {
    ON_DEVICE(source);
    ON_HOST(target);
    return copy(stream, (uint64_t)target, source, bytes);
}
API Result cuMemcpyDtoD_v2(uint64_t target, uint64_t source, size_t bytes) {
    ON_DEVICE(target);
    ON_DEVICE(source);
    return copy(nullptr, target, source, bytes);
}
API Result cuMemcpyDtoDAsync_v2(uint64_t target, uint64_t source, size_t bytes, void* stream) {
    ON_DEVICE(target);
    ON_DEVICE(source);
    return copy(stream, target, source, bytes);
}
API Result cuMemcpyPeer(uint64_t target, Context*, uint64_t source, Context*, size_t bytes) { return copy(nullptr, target, source, bytes); }
API Result cuMemcpyPeerAsync(uint64_t target, Context*, uint64_t source, Context*, size_t bytes, void* stream) {
    return copy(stream, target, source, bytes);
}
static Result fill(void* stream, uint64_t target, unsigned int value, unsigned int element, size_t count) {
    ENTER;
    const size_t bytes = count;
    ON_DEVICE(target);
    if (target % element) return INVALID_VALUE;
    auto node = std::make_unique<Node>();
    node->type = 2;
    node->target = target;
    node->value = value;
    node->element = element;
    node->bytes = count;
    return issue(stream, std::move(node));
}
API Result cuMemsetD8_v2(uint64_t target, unsigned char value, size_t count) { return fill(nullptr, target, value, 1, count); }
API Result cuMemsetD8Async(uint64_t target, unsigned char value, size_t count, void* s) { return fill(s, target, value, 1, count); }
API Result cuMemsetD16_v2(uint64_t target, unsigned short value, size_t count) { return fill(nullptr, target, value, 2, count); }
API Result cuMemsetD16Async(uint64_t target, unsigned short value, size_t count, void* s) { return fill(s, target, value, 2, count); }
API Result cuMemsetD32_v2(uint64_t target, unsigned int value, size_t count) { return fill(nullptr, target, value, 4, count); }
API Result cuMemsetD32Async(uint64_t target, unsigned int value, size_t count, void* s) { return fill(s, target, value, 4, count); }

// --------------------------------------------------------------------------------------------------- streams and events

API Result cuCtxSynchronize() {
    ENTER;
    for (Capture* c : captures) {
        if (c->mode == 0) return c->invalid = true, CAPTURE_UNSUPPORTED;
    }
    return SUCCESS;
}
API Result cuStreamCreateWithPriority(Stream** stream, unsigned int flags, int priority) {
    ENTER;
    *stream = new Stream;
    (*stream)->device = current_context->device;
    (*stream)->flags = flags;
    (*stream)->priority = std::max(-5, std::min(0, priority));
    (*stream)->id = ++next_id;
    return SUCCESS;
}
API Result cuStreamCreate(Stream** stream, unsigned int flags) { return cuStreamCreateWithPriority(stream, flags, 0); }
API Result cuStreamDestroy_v2(Stream* stream) {
    ENTER;
    delete stream;
    return SUCCESS;
}
API Result cuStreamSynchronize(void* handle) {
    ENTER;
    Stream* stream = stream_of(handle);
    if (stream->capture) return stream->capture->invalid = true, CAPTURE_UNSUPPORTED;
    return SUCCESS;
}
API Result cuStreamQuery(void* handle) {
    ENTER;
    Stream* stream = stream_of(handle);
    if (stream->capture) return stream->capture->invalid = true, CAPTURE_UNSUPPORTED;
    return SUCCESS;
}
API Result cuStreamGetPriority(void* handle, int* priority) { return *priority = stream_of(handle)->priority, SUCCESS; }
API Result cuStreamGetFlags(void* handle, unsigned int* flags) { return *flags = stream_of(handle)->flags, SUCCESS; }
API Result cuStreamGetId(void* handle, unsigned long long* id) { return *id = stream_of(handle)->id, SUCCESS; }
API Result cuStreamGetCtx(void* handle, Context** context) {
    ENTER;
    *context = &contexts[stream_of(handle)->device];
    return SUCCESS;
}
API Result cuStreamGetDevice(void* handle, int* device) {
    ENTER;
    *device = stream_of(handle)->device;
    return SUCCESS;
}
API Result cuStreamWaitEvent(void* handle, Event* event, unsigned int) {
    ENTER;
    Stream* stream = stream_of(handle);
    if (event->capture) {
        if (stream->capture && stream->capture != event->capture) return 902;
        if (!stream->capture) {
            stream->last.clear();
            event->capture->joined.push_back(stream);
        }
        stream->capture = event->capture;
        for (Node* node : event->nodes) {
            if (std::find(stream->last.begin(), stream->last.end(), node) == stream->last.end()) stream->last.push_back(node);
        }
    } else if (stream->capture && event->recorded) {
        return stream->capture->invalid = true, 905;
    }
    return SUCCESS;
}
API Result cuEventCreate(Event** event, unsigned int flags) {
    ENTER;
    *event = new Event;
    (*event)->flags = flags;
    return SUCCESS;
}
API Result cuEventDestroy_v2(Event* event) {
    ENTER;
    delete event;
    return SUCCESS;
}
API Result cuEventRecord(Event* event, void* handle) {
    ENTER;
    Stream* stream = stream_of(handle);
    event->capture = stream->capture;
    event->nodes = stream->capture ? stream->last : std::vector<Node*>();
    event->recorded = !stream->capture;
    event->milliseconds = now();
    return SUCCESS;
}
API Result cuEventRecordWithFlags(Event* event, void* handle, unsigned int) { return cuEventRecord(event, handle); }
API Result cuEventQuery(Event* event) { return event->capture ? CAPTURE_UNSUPPORTED : SUCCESS; }
API Result cuEventSynchronize(Event* event) { return event->capture ? CAPTURE_UNSUPPORTED : SUCCESS; }
API Result cuEventElapsedTime_v2(float* milliseconds, Event* start, Event* end) {
    ENTER;
    if (!start->recorded || !end->recorded || (start->flags & 2) || (end->flags & 2)) return INVALID_HANDLE;
    *milliseconds = (float)(end->milliseconds - start->milliseconds);
    return SUCCESS;
}
API Result cuThreadExchangeStreamCaptureMode(int* mode) {
    static thread_local int own = 0;
    std::swap(own, *mode);
    return SUCCESS;
}

// -------------------------------------------------------------------------------------------------------------- graphs

API Result cuStreamBeginCapture_v2(void* handle, int mode) {
    ENTER;
    Stream* stream = stream_of(handle);
    if ((uint64_t)handle <= 1) return CAPTURE_UNSUPPORTED;  // the legacy stream
    if (stream->capture) return INVALID_VALUE;
    stream->capture = new Capture{new Graph, stream, ++next_id, mode};
    stream->last.clear();
    captures.push_back(stream->capture);
    return SUCCESS;
}
API Result cuStreamEndCapture(void* handle, Graph** graph) {
    ENTER;
    Stream* stream = stream_of(handle);
    Capture* capture = stream->capture;
    *graph = nullptr;
    if (!capture) return INVALID_VALUE;
    if (capture->origin != stream) return CAPTURE_UNMATCHED;
    captures.erase(std::find(captures.begin(), captures.end(), capture));
    stream->capture = nullptr;
    for (Stream* other : capture->joined) other->capture = nullptr;
    // Everything must lead to what the origin does last.
    std::vector<Node*> waiting = stream->last, reached;
    while (!waiting.empty()) {
        Node* node = waiting.back();
        waiting.pop_back();
        if (std::find(reached.begin(), reached.end(), node) != reached.end()) continue;
        reached.push_back(node);
        waiting.insert(waiting.end(), node->dependencies.begin(), node->dependencies.end());
    }
    const bool joined = reached.size() == capture->graph->nodes.size();
    stream->last.clear();
    if (capture->invalid || !joined) {
        delete capture->graph;
        return capture->invalid ? CAPTURE_INVALIDATED : CAPTURE_UNJOINED;
    }
    *graph = capture->graph;
    return SUCCESS;
}
API Result cuStreamIsCapturing(void* handle, int* status) {
    ENTER;
    Stream* stream = stream_of(handle);
    *status = !stream->capture ? 0 : stream->capture->invalid ? 2 : 1;
    return SUCCESS;
}
API Result cuStreamGetCaptureInfo_v2(void* handle, int* status, unsigned long long* id, Graph** graph, Node* const** nodes, size_t* count) {
    ENTER;
    Stream* stream = stream_of(handle);
    *status = !stream->capture ? 0 : stream->capture->invalid ? 2 : 1;
    if (!stream->capture) return SUCCESS;
    if (id) *id = stream->capture->id;
    if (graph) *graph = stream->capture->graph;
    if (nodes) *nodes = stream->last.data();
    if (count) *count = stream->last.size();
    return SUCCESS;
}
API Result cuStreamGetCaptureInfo_v3(void* handle, int* status, unsigned long long* id, Graph** graph, Node* const** nodes, const void** edges, size_t* count) {
    if (edges) *edges = nullptr;
    return cuStreamGetCaptureInfo_v2(handle, status, id, graph, nodes, count);
}
API Result cuGraphCreate(Graph** graph, unsigned int) { return *graph = new Graph, SUCCESS; }
API Result cuGraphDestroy(Graph* graph) {
    ENTER;
    delete graph;
    return SUCCESS;
}
API Result cuGraphGetNodes(Graph* graph, Node** nodes, size_t* count) {
    ENTER;
    if (nodes) {
        for (size_t i = 0; i < *count && i < graph->nodes.size(); i++) nodes[i] = graph->nodes[i].get();
    }
    *count = nodes ? std::min(*count, graph->nodes.size()) : graph->nodes.size();
    return SUCCESS;
}
API Result cuGraphNodeGetType(Node* node, int* type) { return *type = node->type, SUCCESS; }
API Result cuGraphNodeGetDependencies_v2(Node* node, Node** nodes, void*, size_t* count) {
    if (nodes) std::copy_n(node->dependencies.begin(), std::min(*count, node->dependencies.size()), nodes);
    *count = node->dependencies.size();
    return SUCCESS;
}
API Result cuGraphGetEdges_v2(Graph* graph, Node** from, Node** to, void*, size_t* count) {
    size_t at = 0;
    for (auto& node : graph->nodes) {
        for (Node* d : node->dependencies) {
            if (from && at < *count) from[at] = d, to[at] = node.get();
            at++;
        }
    }
    *count = at;
    return SUCCESS;
}
struct KernelParameters {
    Function* function;
    unsigned int gx, gy, gz, bx, by, bz, shared;
    void** parameters;
    void** extra;
    void* kernel;
    Context* context;
};
static void set(Node* node, const KernelParameters* p) {
    auto fresh = kernel_node(p->function, {p->gx, p->gy, p->gz}, {p->bx, p->by, p->bz}, p->shared, p->parameters);
    node->function = fresh->function;
    node->grid = fresh->grid;
    node->block = fresh->block;
    node->shared_bytes = fresh->shared_bytes;
    node->parameters = fresh->parameters;
}
API Result cuGraphAddKernelNode_v2(Node** result, Graph* graph, Node* const* dependencies, size_t count, const KernelParameters* p) {
    ENTER;
    auto node = kernel_node(p->function, {p->gx, p->gy, p->gz}, {p->bx, p->by, p->bz}, p->shared, p->parameters);
    if (Result code = check_launch(*node)) return code;
    node->dependencies.assign(dependencies, dependencies + count);
    *result = node.get();
    graph->nodes.push_back(std::move(node));
    return SUCCESS;
}
API Result cuGraphKernelNodeGetParams_v2(Node* node, KernelParameters* p) {
    ENTER;
    if (node->type != 0) return INVALID_VALUE;
    static thread_local std::vector<void*> pointers;
    pointers.clear();
    for (auto& parameter : node->parameters) pointers.push_back(parameter.data());
    *p = {node->function, node->grid.x, node->grid.y, node->grid.z, node->block.x, node->block.y, node->block.z,
          node->shared_bytes, pointers.data(), nullptr, nullptr, current_context};
    return SUCCESS;
}
API Result cuGraphKernelNodeSetParams_v2(Node* node, const KernelParameters* p) {
    ENTER;
    set(node, p);
    return check_launch(*node);
}
API Result cuGraphKernelNodeSetAttribute(Node* node, int id, const unsigned int* value) {
    ENTER;
    if (node->type != 0) return INVALID_VALUE;
    if (id == 4) node->cluster = {value[0], value[1], value[2]};
    if (id == 2) node->together = value[0] != 0;
    return check_launch(*node);
}
API Result cuGraphExecKernelNodeSetParams_v2(GraphExec* exec, Node* node, const KernelParameters* p) {
    ENTER;
    auto found = exec->copies.find(node);
    if (found == exec->copies.end()) return INVALID_VALUE;
    set(found->second, p);
    return check_launch(*found->second);
}
struct Copy3D {
    size_t source_x, source_y, source_z, source_lod;
    int source_type;
    const void* source_host;
    uint64_t source_device;
    void *source_array, *reserved0;
    size_t source_pitch, source_height;
    size_t target_x, target_y, target_z, target_lod;
    int target_type;
    void* target_host;
    uint64_t target_device;
    void *target_array, *reserved1;
    size_t target_pitch, target_height, width, height, depth;
};
static Result set(Node* node, const Copy3D* c) {
    if (c->height > 1 || c->depth > 1) {
        say("copies of more than one row are not emulated");
        return NOT_SUPPORTED;
    }
    node->type = 1;
    node->source = (c->source_type == 1 ? (uint64_t)c->source_host : c->source_device) + c->source_x;
    node->target = (c->target_type == 1 ? (uint64_t)c->target_host : c->target_device) + c->target_x;
    node->bytes = c->width;
    return SUCCESS;
}
API Result cuGraphAddMemcpyNode(Node** result, Graph* graph, Node* const* dependencies, size_t count, const Copy3D* c, Context*) {
    ENTER;
    auto node = std::make_unique<Node>();
    if (Result code = set(node.get(), c)) return code;
    node->dependencies.assign(dependencies, dependencies + count);
    *result = node.get();
    graph->nodes.push_back(std::move(node));
    return SUCCESS;
}
API Result cuGraphMemcpyNodeGetParams(Node* node, Copy3D* c) {
    ENTER;
    if (node->type != 1) return INVALID_VALUE;
    memset(c, 0, sizeof *c);
    const bool from_device = in_arena(node->source), to_device = in_arena(node->target);
    c->source_type = from_device ? 2 : 1;
    c->target_type = to_device ? 2 : 1;
    if (from_device) c->source_device = node->source;
    else c->source_host = (void*)node->source;
    if (to_device) c->target_device = node->target;
    else c->target_host = (void*)node->target;
    c->width = node->bytes;
    c->height = c->depth = 1;
    return SUCCESS;
}
API Result cuGraphExecMemcpyNodeSetParams(GraphExec* exec, Node* node, const Copy3D* c, Context*) {
    ENTER;
    auto found = exec->copies.find(node);
    return found == exec->copies.end() ? (Result)INVALID_VALUE : set(found->second, c);
}
struct FillParameters {
    uint64_t target;
    size_t pitch;
    unsigned int value, element;
    size_t width, height;
};
API Result cuGraphMemsetNodeGetParams(Node* node, FillParameters* p) {
    if (node->type != 2) return INVALID_VALUE;
    *p = {node->target, 0, node->value, node->element, node->bytes, 1};
    return SUCCESS;
}
static Result set(Node* node, const FillParameters* p) {
    if (p->height > 1) return NOT_SUPPORTED;
    node->type = 2;
    node->target = p->target;
    node->value = p->value;
    node->element = p->element;
    node->bytes = p->width;
    return SUCCESS;
}
API Result cuGraphAddMemsetNode(Node** result, Graph* graph, Node* const* dependencies, size_t count, const FillParameters* p, Context*) {
    ENTER;
    auto node = std::make_unique<Node>();
    if (Result code = set(node.get(), p)) return code;
    node->dependencies.assign(dependencies, dependencies + count);
    *result = node.get();
    graph->nodes.push_back(std::move(node));
    return SUCCESS;
}
API Result cuGraphExecMemsetNodeSetParams(GraphExec* exec, Node* node, const FillParameters* p, Context*) {
    ENTER;
    auto found = exec->copies.find(node);
    return found == exec->copies.end() ? (Result)INVALID_VALUE : set(found->second, p);
}
API Result cuGraphInstantiateWithFlags(GraphExec** exec, Graph* graph, unsigned long long) {
    ENTER;
    *exec = new GraphExec;
    for (auto& node : graph->nodes) {
        (*exec)->nodes.push_back(std::make_unique<Node>(*node));
        (*exec)->copies[node.get()] = (*exec)->nodes.back().get();
    }
    return SUCCESS;
}
API Result cuGraphInstantiateWithParams(GraphExec** exec, Graph* graph, void*) { return cuGraphInstantiateWithFlags(exec, graph, 0); }
API Result cuGraphUpload(GraphExec*, void*) { return SUCCESS; }
API Result cuGraphExecDestroy(GraphExec* exec) {
    ENTER;
    delete exec;
    return SUCCESS;
}
API Result cuGraphLaunch(GraphExec* exec, void* stream) {
    ENTER;
    for (auto& node : exec->nodes) {
        auto copy = std::make_unique<Node>(*node);
        copy->dependencies.clear();
        if (Result code = issue(stream, std::move(copy))) return code;
    }
    return SUCCESS;
}
