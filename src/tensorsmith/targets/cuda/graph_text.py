"""The LLVM text that turns launches of steps into nodes of a CUDA graph.

The native function of a step (`launcher_text.py`) calls what its device's cell says. A graph has a cell of its own, in which
these two functions stand for cuLaunchKernel and cuLaunchKernelEx, and the address of its *state* for the stream. So a step
that is launched over that cell adds its kernels to the graph, or gives the nodes that it added before their new arguments.
"""

from __future__ import annotations

import enum


class State(enum.IntEnum):
    """The words of a graph's state."""

    UPDATES = 0  # 0: kernels become nodes; 1: nodes get new arguments
    GRAPH = 1
    EXECUTABLE = 2
    NODES = 3  # address of an array of node handles
    NEXT = 4  # the number of the next node
    DEPENDENCIES = 5  # address of the handles that the next node comes after
    COUNT = 6  # how many those are
    ADD = 7  # from here on addresses of driver functions
    SET = 8
    SET_ATTRIBUTE = 9


FUNCTIONS = {
    State.ADD: "cuGraphAddKernelNode_v2",
    State.SET: "cuGraphExecKernelNodeSetParams_v2",
    State.SET_ATTRIBUTE: "cuGraphKernelNodeSetAttribute",
}

PLAIN, EXTENDED = "graph_kernel", "graph_kernel_extended"

# A CUDA_KERNEL_NODE_PARAMS_v2: function, grid, block, shared bytes, parameters, extra, kernel, context.
TEXT = r"""
define i32 @graph_kernel(ptr %function, i32 %gx, i32 %gy, i32 %gz, i32 %bx, i32 %by, i32 %bz, i32 %shared, ptr %state,
                         ptr %parameters, ptr %extra) {
entry:
  %kernel = alloca [72 x i8], align 8
  store ptr %function, ptr %kernel
  %p1 = getelementptr i8, ptr %kernel, i64 8
  store i32 %gx, ptr %p1
  %p2 = getelementptr i8, ptr %kernel, i64 12
  store i32 %gy, ptr %p2
  %p3 = getelementptr i8, ptr %kernel, i64 16
  store i32 %gz, ptr %p3
  %p4 = getelementptr i8, ptr %kernel, i64 20
  store i32 %bx, ptr %p4
  %p5 = getelementptr i8, ptr %kernel, i64 24
  store i32 %by, ptr %p5
  %p6 = getelementptr i8, ptr %kernel, i64 28
  store i32 %bz, ptr %p6
  %p7 = getelementptr i8, ptr %kernel, i64 32
  store i32 %shared, ptr %p7
  %p8 = getelementptr i8, ptr %kernel, i64 40
  store ptr %parameters, ptr %p8
  %p9 = getelementptr i8, ptr %kernel, i64 48
  store ptr null, ptr %p9
  %p10 = getelementptr i8, ptr %kernel, i64 56
  store ptr null, ptr %p10
  %p11 = getelementptr i8, ptr %kernel, i64 64
  store ptr null, ptr %p11
  %next_at = getelementptr i64, ptr %state, i64 NEXT
  %next = load i64, ptr %next_at
  %nodes_at = getelementptr i64, ptr %state, i64 NODES
  %nodes = load ptr, ptr %nodes_at
  %node_at = getelementptr i64, ptr %nodes, i64 %next
  %after = add i64 %next, 1
  store i64 %after, ptr %next_at
  %updates = load i64, ptr %state
  %is_update = icmp ne i64 %updates, 0
  br i1 %is_update, label %update, label %add
update:
  %set_at = getelementptr i64, ptr %state, i64 SET
  %set = load ptr, ptr %set_at
  %executable_at = getelementptr i64, ptr %state, i64 EXECUTABLE
  %executable = load ptr, ptr %executable_at
  %node = load ptr, ptr %node_at
  %status = call i32 %set(ptr %executable, ptr %node, ptr %kernel)
  ret i32 %status
add:
  %add_at = getelementptr i64, ptr %state, i64 ADD
  %add_node = load ptr, ptr %add_at
  %graph_at = getelementptr i64, ptr %state, i64 GRAPH
  %graph = load ptr, ptr %graph_at
  %dependencies_at = getelementptr i64, ptr %state, i64 DEPENDENCIES
  %dependencies = load ptr, ptr %dependencies_at
  %count_at = getelementptr i64, ptr %state, i64 COUNT
  %count = load i64, ptr %count_at
  %status2 = call i32 %add_node(ptr %node_at, ptr %graph, ptr %dependencies, i64 %count, ptr %kernel)
  store ptr %node_at, ptr %dependencies_at  ; the step's next kernel comes after this one
  store i64 1, ptr %count_at
  ret i32 %status2
}

define i32 @graph_kernel_extended(ptr %config, ptr %function, ptr %parameters, ptr %extra) {
entry:
  %gx = load i32, ptr %config
  %c1 = getelementptr i8, ptr %config, i64 4
  %gy = load i32, ptr %c1
  %c2 = getelementptr i8, ptr %config, i64 8
  %gz = load i32, ptr %c2
  %c3 = getelementptr i8, ptr %config, i64 12
  %bx = load i32, ptr %c3
  %c4 = getelementptr i8, ptr %config, i64 16
  %by = load i32, ptr %c4
  %c5 = getelementptr i8, ptr %config, i64 20
  %bz = load i32, ptr %c5
  %c6 = getelementptr i8, ptr %config, i64 24
  %shared = load i32, ptr %c6
  %c7 = getelementptr i8, ptr %config, i64 32
  %state = load ptr, ptr %c7
  %c8 = getelementptr i8, ptr %config, i64 40
  %attributes = load ptr, ptr %c8
  %c9 = getelementptr i8, ptr %config, i64 48
  %count = load i32, ptr %c9
  %status = call i32 @graph_kernel(ptr %function, i32 %gx, i32 %gy, i32 %gz, i32 %bx, i32 %by, i32 %bz, i32 %shared,
                                   ptr %state, ptr %parameters, ptr null)
  %updates = load i64, ptr %state
  %is_update = icmp ne i64 %updates, 0
  %failed = icmp ne i32 %status, 0
  %over = or i1 %is_update, %failed
  br i1 %over, label %done, label %head
done:
  ret i32 %status
head:
  %i = phi i32 [0, %entry], [%i1, %set]
  %more = icmp ult i32 %i, %count
  br i1 %more, label %set, label %done
set:
  %set_at = getelementptr i64, ptr %state, i64 SET_ATTRIBUTE
  %set_attribute = load ptr, ptr %set_at
  %last_at = getelementptr i64, ptr %state, i64 DEPENDENCIES
  %node_at = load ptr, ptr %last_at
  %node = load ptr, ptr %node_at
  %wide = zext i32 %i to i64
  %place = mul i64 %wide, 72
  %attribute = getelementptr i8, ptr %attributes, i64 %place
  %id = load i32, ptr %attribute
  %value = getelementptr i8, ptr %attribute, i64 8
  %status2 = call i32 %set_attribute(ptr %node, i32 %id, ptr %value)
  %i1 = add i32 %i, 1
  %wrong = icmp ne i32 %status2, 0
  br i1 %wrong, label %bad, label %head
bad:
  ret i32 %status2
}
"""


def graph_text() -> str:
    """The text of both functions."""
    import re

    names = {each.name: str(int(each)) for each in State}
    return re.sub(r"\bi64 ([A-Z_]+)\b", lambda found: f"i64 {names[found.group(1)]}", TEXT)
