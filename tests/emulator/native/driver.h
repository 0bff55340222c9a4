// What the parts of the fake driver share: handles, results, the memory of the devices.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "machine.h"

#define API extern "C" __attribute__((visibility("default")))

typedef int Result;
enum : int {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
    INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NO_BINARY = 209, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600,
    ILLEGAL_ADDRESS = 700, OUT_OF_RESOURCES = 701, NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901, CAPTURE_UNMATCHED = 903, CAPTURE_UNJOINED = 904, CAPTURE_IMPLICIT = 906,
    CAPTURE_WRONG_THREAD = 908, INVALID_CLUSTER = 912, COOPERATIVE_TOO_LARGE = 720
};

struct Context {
    int device;
    int retained = 0;
};

struct Module {
    void* library;
    unsigned int* static_bytes;
    std::map<std::string, std::unique_ptr<struct Function>> functions;
};

struct Function {
    Module* module;
    const EmulatedKernel* kernel;
    unsigned int dynamic_limit = 48 * 1024;
    bool large_clusters = false;
};

struct Node {
    int type;  // of CUgraphNodeType
    std::vector<Node*> dependencies;
    // a kernel
    Function* function = nullptr;
    Index3 grid{}, block{}, cluster{1, 1, 1};
    bool together = false;  // a cooperative launch: its blocks run at the same time
    unsigned int shared_bytes = 0;
    std::vector<std::vector<char>> parameters;
    // a copy, or a fill
    uint64_t target = 0, source = 0;
    size_t bytes = 0;
    unsigned int value = 0, element = 1;
    // a function of the host
    void (*host)(void*) = nullptr;
    void* data = nullptr;

    Result run();
};

struct Graph {
    std::vector<std::unique_ptr<Node>> nodes;  // in an order that respects dependencies
};

struct GraphExec {
    std::vector<std::unique_ptr<Node>> nodes;
    std::map<const Node*, Node*> copies;
};

struct Capture {
    Graph* graph;
    struct Stream* origin;
    unsigned long long id;
    int mode;
    bool invalid = false;
    std::vector<struct Stream*> joined;  // other streams that wait for it, and are captured too
};

struct Stream {
    int device;
    unsigned int flags = 0;
    int priority = 0;
    unsigned long long id = 0;
    Capture* capture = nullptr;
    std::vector<Node*> last;  // what the next captured node depends on
};

struct Event {
    unsigned int flags = 0;
    bool recorded = false;
    double milliseconds = 0;
    Capture* capture = nullptr;
    std::vector<Node*> nodes;
};

extern std::recursive_mutex lock;
extern thread_local Context* current_context;
extern bool initialized;
extern std::vector<Context> contexts;

// The device's memory is open to reads and writes of this process while one of these lives.
struct Open {
    Open();
    ~Open();
};

Result check_context();
bool in_device_memory(uint64_t address, size_t bytes);  // wholly inside one allocation
bool in_arena(uint64_t address);
int device_of(uint64_t address);  // -1 for memory of the host
bool host_registered(uint64_t address);
Stream* stream_of(void* handle);
Result issue(void* stream, std::unique_ptr<Node> node);  // runs it now, or adds it to the graph that is captured
Result check_launch(const Node& node);
void say(const char* text);  // on stderr, what a result alone does not say
const char* setting(const char* name, const char* otherwise);

#define ENTER                                              \
    std::lock_guard<std::recursive_mutex> entered(lock);   \
    if (Result context_fault = check_context()) return context_fault
