"""What one kernel would compute: the walk from a root down through what can be inlined to values in memory.

Views met on the way are a chain, applied to the strides of the value below it (`apply_chain`). Where something cannot be
inlined the walk raises `NeedsBuffer` with the value that has to be memory first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tensorsmith.core import views
from tensorsmith.core.layout import contiguous_strides
from tensorsmith.core.views import Strided, same_strides
from tensorsmith.ir.graph import VIEWS, Node, Primitive, touches_complex
from tensorsmith.passes.reductions import reduced
from tensorsmith.scalar.table import Fn


def inlined_inputs(anchor: Node) -> tuple[Node, ...]:
    """The operands an anchor copies, which may therefore be computed on the way: parts of a buffer, the base of a write."""
    if touches_complex(anchor):
        return ()
    if anchor.op in (Primitive.PAD, Primitive.CONCAT):
        return anchor.inputs
    return anchor.inputs[:1] if anchor.op in (Primitive.SCATTER, Primitive.PUT) else ()


def of_numbers(node: Node) -> bool:
    """Whether a value is made of constants and run-time scalars alone, so that a NumPy step computes it where it is read."""
    if node.op is Primitive.INPUT:
        return bool(node.attrs["param"])
    return node.op in (Primitive.CONST, Primitive.CAST, Primitive.MAP, Primitive.RESHAPE) and (
        node.numel == 1 and all(of_numbers(operand) for operand in node.inputs)
    )


VIEW_RULES = {op: views.RULES[op.value] for op in Primitive if op.value in views.RULES}
LARGEST_BODY = 96  # inlined scalar operations in one kernel; also bounds recursion


class NeedsBuffer(Exception):
    """Raised during analysis: `node` has to be materialised; last: an image, with its channels side by side."""

    def __init__(self, node: Node, last: bool = False) -> None:
        self.node = node
        self.last = last


Chain = tuple[Node, ...]  # views to apply to a value, innermost first


@dataclass
class Group:
    """One step of the plan: a fused kernel (anchor None) or an anchor with its epilogue."""

    roots: list[Node]
    domain: tuple[int, ...] = ()
    reduce_axes: tuple[int, ...] = ()
    anchor: Node | None = None
    bias: Node | None = None  # of a matmul: the node added to every row
    activation: Fn | None = None  # of a matmul: applied last
    absorbed: frozenset[Node] = frozenset()  # of an anchor: what it computes of its results (`passes/epilogues.py`)
    leaves: set[Node] = field(default_factory=set)
    accesses: list[tuple[Node, Chain, bool]] = field(default_factory=list)  # how leaves are read; inside a reduction?
    visited: set[Node] = field(default_factory=set)
    after: int = -1  # computes values again (AGAIN), and is no part of a kernel that began before this node
    parts: tuple[Group, ...] = ()  # a kernel along rows and one of sums over them that a target computes in one step
    apart: str = ""  # of sums over the rows of another kernel: why that does not compute them

    def copy(self) -> Group:
        """The same kernel, to be joined with others (which adds to roots, leaves and visited)."""
        return Group(
            self.roots.copy(), self.domain, self.reduce_axes, self.anchor, self.bias, self.activation, self.absorbed,
            self.leaves.copy(), self.accesses, self.visited.copy(), self.after, self.parts,
        )  # fmt: skip


def apply_chain(start: Strided, chain: Chain) -> Strided:
    """Strides after a chain of views; NeedsBuffer where a view cannot be expressed."""
    current = start
    for view in chain:
        following = VIEW_RULES[view.op](current, view.attrs)
        if following is None:
            raise NeedsBuffer(view if view.op is Primitive.RESHAPE else view.inputs[0])
        current = following
    return current


def row_shape(domain: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """The domain with its reduced axes at extent 1."""
    return tuple([1 if axis in axes else extent for axis, extent in enumerate(domain)])


class Walk:
    """A walk over what one root computes: finds its domain, leaves and reductions; `kernels/assemble.py` emits along it."""

    def __init__(self, materialised: set[Node], place: Callable[[Node], Strided], group: Group) -> None:
        self.materialised = materialised
        self.place = place
        self.group = group
        self.root: Node | None = None
        self.path: list[Node] = []  # from below the root down to the node that is walked
        self.size = 0
        self.seen: set[tuple[Node, Chain, bool]] = set()

    def start(self, root: Node) -> None:
        """Walk one root. The first reduction met fixes the domain of a new group."""
        self.root = root
        if root.op is Primitive.RESHAPE:  # written contiguously, so the shape before it will do
            self.visit(root.inputs[0], (), False)
        elif root.op in VIEWS:
            self.visit(root.inputs[0], (root,), False)
        else:
            self.inputs_of(root, (), False)

    def visit(self, node: Node, chain: Chain, in_reduction: bool) -> None:
        key = (node, chain, in_reduction)
        if key in self.seen:
            return
        self.seen.add(key)
        if node.op is Primitive.CONST or (node.op is Primitive.INPUT and node.attrs["param"]):
            return
        if node in self.materialised or node.op is Primitive.INPUT:
            apply_chain(self.place(node), chain)
            self.group.leaves.add(node)
            self.group.accesses.append((node, chain, in_reduction))
            return
        self.path.append(node)
        self.descend(node, chain, in_reduction)
        self.path.pop()

    def descend(self, node: Node, chain: Chain, in_reduction: bool) -> None:
        if node.op is Primitive.AGAIN:
            self.group.after = max(self.group.after, node.index)
            self.visit(node.inputs[0], chain, in_reduction)
            return
        if node.op in VIEWS:
            self.visit(node.inputs[0], (node, *chain), in_reduction)
            return
        if node.op is Primitive.PAIR:  # two stores of one kernel; read again from memory
            raise NeedsBuffer(node)
        self.group.visited.add(node)
        if node.op is Primitive.IOTA:
            apply_chain(Strided(node.shape, (1,)), chain)
            return
        self.size += 1
        if self.size > LARGEST_BODY:
            raise NeedsBuffer(node)
        self.inputs_of(node, chain, in_reduction)

    def inputs_of(self, node: Node, chain: Chain, in_reduction: bool) -> None:
        if node.op is Primitive.REDUCE:
            self.reduction(node, chain, in_reduction)
            return
        for operand in node.inputs:
            self.visit(operand, chain, in_reduction)

    def reduction(self, node: Node, chain: Chain, in_reduction: bool) -> None:
        assert self.root is not None
        source, axes = reduced(node, self.materialised)
        shape, group = source.shape, self.group
        if not group.reduce_axes and not group.domain:
            group.domain, group.reduce_axes = shape, axes
        if group.domain != shape or group.reduce_axes != axes:
            joined = self.inside_joined()
            raise NeedsBuffer(self.row_value(node) if joined is None else joined)
        target = shape if in_reduction else root_domain(self.root)
        if not aligned(node, chain, target, shape, axes):
            raise NeedsBuffer(node)
        if len(axes) > 1:
            group.visited.add(node.inputs[0])
        self.visit(source, (), True)

    def inside_joined(self) -> Node | None:
        """The inner one of two joined reductions that the path leads through: with it apart, its rows may be a kernel."""
        for above in self.path:
            if above.op is Primitive.REDUCE and len(reduced(above, self.materialised)[1]) > 1:
                return above.inputs[0]
        return None

    def row_value(self, node: Node) -> Node:
        """What to materialise for a reduction over other points: the last value computed from it that is as small.

        So the mean of a loss reads one value a row, and the kernel of the rows is one, however many reductions it has.
        """
        found = node
        for above in reversed(self.path):
            if above.numel != node.numel:
                break
            if above.op not in VIEWS:
                found = above
        return found


def root_domain(root: Node) -> tuple[int, ...]:
    """The points a root is written at."""
    return root.inputs[0].shape if root.op in (Primitive.RESHAPE, Primitive.PAIR) else root.shape


def aligned(
    node: Node, chain: Chain, target: tuple[int, ...], domain: tuple[int, ...], axes: tuple[int, ...]
) -> bool:
    """Whether a reduction seen through `chain` is, at every point of `target`, the value of the same row of the domain."""
    rows = row_shape(domain, axes)
    seen = apply_chain(Strided(rows, contiguous_strides(rows)), chain)
    if seen.offset:
        return False
    if target == domain:
        expected = tuple(0 if i in axes else s for i, s in enumerate(contiguous_strides(rows)))
        return same_strides(domain, seen.strides, expected)
    return is_row_result(target, domain, axes) and same_strides(target, seen.strides, contiguous_strides(target))


def same_rows(old: Group, new: Group) -> bool:
    """Whether all that `new` reads of what `old` writes is the value of the same row, so that one kernel can do both."""
    domain, axes = old.domain, old.reduce_axes
    if not axes or domain != new.domain:
        return False
    rows = row_shape(domain, axes)
    if rows == domain:
        return False
    try:
        return all(
            node.shape == rows and aligned(node, chain, domain if inside else root_domain(new.roots[0]), domain, axes)
            for node, chain, inside in new.accesses
            if any(node is root for root in old.roots)
        )
    except NeedsBuffer:
        return False


def same_points(old: Group, new: Group) -> bool:
    """Whether `new`, which reduces nothing, reads what `old` writes only at the point it is written: one kernel does both."""
    if old.anchor is not None or new.reduce_axes or old.domain != new.domain:
        return False
    made = {id(root) for root in old.roots}
    read = [(node, chain) for node, chain, _ in new.accesses if id(node) in made]
    return all(not chain and node.op not in VIEWS and node.shape == old.domain for node, chain in read)


def is_row_result(shape: tuple[int, ...], domain: tuple[int, ...], axes: tuple[int, ...]) -> bool:
    """Whether a value of this shape has one element a row of the domain, in order."""
    return [n for n in shape if n != 1] == [n for n in row_shape(domain, axes) if n != 1]


def channels_last(node: Node) -> Strided:
    """A place of its own for an image (N, C, H, W), its channels side by side."""
    batch, channels, height, width = node.shape
    shape = (batch, height, width, channels)
    return views.permute(Strided(shape, contiguous_strides(shape)), (0, 3, 1, 2))


def contiguous(node: Node) -> Strided:
    """A place of its own."""
    return Strided(node.shape, contiguous_strides(node.shape))
