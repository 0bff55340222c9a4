"""Groups to KernelSpecs: emit the scalar body of a fused kernel by walking the graph from its roots.

The walk is the one of `passes/walk.py`: a chain of views travels down to the buffers and becomes strides. What is new
here are instructions. Half-precision values are computed in float32; an explicit CAST to a half type rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorsmith.core import views
from tensorsmith.core.dtypes import DType, bool_, compute_dtype, int64
from tensorsmith.core.views import Strided
from tensorsmith.ir.graph import VIEWS, Node, Primitive, base_of
from tensorsmith.kernels.epilogue import Body
from tensorsmith.kernels.spec import Instr, KernelSpec, Kind, Operand, Store
from tensorsmith.passes.epilogues import columns_of, kind_of
from tensorsmith.passes.fusion import Fusion
from tensorsmith.passes.reductions import reduced
from tensorsmith.passes.walk import Chain, Group, NeedsBuffer, apply_chain, root_domain, row_shape
from tensorsmith.scalar.table import Fn


@dataclass
class Read:
    """An operand of a kernel: the buffer's node and the element offset into it."""

    node: Node
    offset: int


@dataclass
class Kernel:
    """A spec with what its launch words stand for: buffers read, roots written (element offset each), scalars."""

    spec: KernelSpec
    reads: list[Read]
    writes: list[tuple[Node, int]]
    params: list[Node]


class Assembler:
    """Emits the body of one kernel."""

    def __init__(self, fusion: Fusion, group: Group) -> None:
        self.fusion = fusion
        self.group = group
        self.domain = group.domain
        self.axes = group.reduce_axes
        self.body: list[Instr] = []
        self.interned: dict[tuple, int] = {}
        self.operands: list[Operand] = []
        self.reads: list[Read] = []
        self.read_index: dict[tuple[Node, tuple[int, ...], int], int] = {}
        self.params: dict[Node, int] = {}
        self.memo: dict[tuple[Node, Chain, bool], int] = {}
        self.stored: dict[Node, tuple[int, bool]] = {}

    def emit(self, kind: Kind, dtype: DType, args: tuple[int, ...] = (), **fields: object) -> int:
        """The position of an instruction, an equal one if there is one (constants by type and bit pattern)."""
        instr = Instr(kind, dtype, args, **fields)  # type: ignore[arg-type]
        key = (kind, dtype, args, instr.fn, instr.index, repr(instr.value), instr.reduction)
        found = self.interned.get(key)
        if found is None:
            found = self.interned[key] = len(self.body)
            self.body.append(instr)
        return found

    def cast(self, value: int, dtype: DType) -> int:
        instr = self.body[value]
        if instr.dtype is dtype:
            return value
        if instr.kind is Kind.CAST and compute_dtype(dtype) is instr.dtype and self.body[instr.args[0]].dtype is dtype:
            return instr.args[0]  # a half value that was only widened
        return self.emit(Kind.CAST, dtype, (value,))

    def per_row(self, root: Node) -> bool:
        """Whether a root is one value a row."""
        return bool(self.axes) and root_domain(root) != self.domain

    # --- the walk ---------------------------------------------------------------------------------------------------

    def root(self, root: Node) -> tuple[int, bool]:
        """Emit one root; its instruction and whether it is one value a row."""
        row = self.per_row(root)
        if root.op is Primitive.RESHAPE:
            value = self.visit(root.inputs[0], (), row)
        elif root.op in VIEWS:
            value = self.visit(root.inputs[0], (root,), row)
        else:
            value = self.compute(root, (), row)
        self.stored[root] = (value, row)
        return value, row

    def visit(self, node: Node, chain: Chain, row: bool) -> int:
        key = (node, chain, row)
        found = self.memo.get(key)
        if found is None:
            found = self.memo[key] = self.visit_new(node, chain, row)
        return found

    def visit_new(self, node: Node, chain: Chain, row: bool) -> int:
        if node in self.stored and self.stored[node][1]:  # a value of this row (`passes/walk.py: same_rows`)
            return self.stored[node][0]
        if node in self.stored and not chain and self.stored[node][1] == row and node.op not in VIEWS:
            return self.stored[node][0]
        if node.op is Primitive.CONST:
            return self.emit(Kind.CONST, compute_dtype(node.dtype), value=node.attrs["value"])
        if node.op is Primitive.INPUT and node.attrs["param"]:
            index = self.params.setdefault(node, len(self.params))
            return self.emit(Kind.PARAM, node.dtype, index=index)
        if node in self.fusion.materialised or node.op is Primitive.INPUT:
            return self.load(node, chain, row)
        if node.op in VIEWS:
            return self.visit(node.inputs[0], chain if node.op is Primitive.AGAIN else (node, *chain), row)
        return self.compute(node, chain, row)

    def compute(self, node: Node, chain: Chain, row: bool) -> int:
        op = node.op
        if op is Primitive.CONST:
            return self.emit(Kind.CONST, compute_dtype(node.dtype), value=node.attrs["value"])
        if op is Primitive.IOTA:
            return self.coordinate(self.over_domain(apply_chain(Strided(node.shape, (1,)), chain), row))
        if op is Primitive.REDUCE:
            value = self.visit(reduced(node, self.fusion.materialised)[0], (), False)
            dtype = int64 if node.attrs["kind"] in ("argmax", "argmin") else compute_dtype(node.dtype)
            return self.emit(Kind.REDUCE, dtype, (value,), reduction=node.attrs["kind"])
        args = tuple(self.visit(operand, chain, row) for operand in node.inputs)
        dtype = compute_dtype(node.dtype)
        if op is Primitive.MAP:
            return self.emit(Kind.APPLY, dtype, args, fn=node.attrs["fn"])
        if op is Primitive.RANDOM:
            return self.emit(Kind.RANDOM, node.dtype, args)
        if op is Primitive.CAST:
            value = self.cast(args[0], dtype)
            source = node.inputs[0].dtype
            if dtype is not node.dtype and source is not node.dtype and source is not bool_:
                value = self.cast(self.cast(value, node.dtype), dtype)  # an explicit cast to a half type rounds
            return value
        raise NotImplementedError(f"kernel body: {op.value} has no rendering as a scalar instruction")

    def load(self, node: Node, chain: Chain, row: bool) -> int:
        seen = self.over_domain(apply_chain(self.fusion.place(node), chain), row)
        key = (node, seen.strides, seen.offset)
        index = self.read_index.get(key)
        if index is None:
            index = self.read_index[key] = len(self.operands)
            self.operands.append(Operand(node.dtype, seen.strides))
            self.reads.append(Read(node, seen.offset))
        value = self.emit(Kind.LOAD, node.dtype, index=index)
        return self.cast(value, compute_dtype(node.dtype))

    def over_domain(self, seen: Strided, row: bool) -> Strided:
        """Strides per domain axis; a value per row is brought into the domain's shape with stride 0 along what is reduced."""
        if not row:
            return seen
        rows = views.reshape(seen, row_shape(self.domain, self.axes))
        if rows is None:
            raise NeedsBuffer(self.group.roots[-1])
        strides = tuple(0 if i in self.axes else s for i, s in enumerate(rows.strides))
        return Strided(self.domain, strides, rows.offset)

    def coordinate(self, seen: Strided) -> int:
        """offset + sum of stride * index, as int64 instructions."""
        total = self.emit(Kind.CONST, int64, value=seen.offset) if seen.offset or not any(seen.strides) else None
        for axis, stride in enumerate(seen.strides):
            if stride == 0 or self.domain[axis] == 1:
                continue
            term = self.emit(Kind.INDEX, int64, index=axis)
            if stride != 1:
                term = self.emit(Kind.APPLY, int64, (term, self.emit(Kind.CONST, int64, value=stride)), fn=Fn.MUL)
            total = term if total is None else self.emit(Kind.APPLY, int64, (total, term), fn=Fn.ADD)
        return total if total is not None else self.emit(Kind.CONST, int64, value=0)


def assemble(fusion: Fusion, group: Group) -> Kernel:
    """The kernel of a fused group."""
    assembler = Assembler(fusion, group)
    stores = []
    writes = []
    for root in group.roots:
        place = fusion.place(root)
        if root.op is Primitive.PAIR:
            row = assembler.per_row(root)
            for operand, part in zip(root.inputs, parts_of_pair(place)):
                value = assembler.cast(assembler.visit(operand, (), row), root.dtype)
                seen = assembler.over_domain(part, row)
                stores.append(Store(Operand(root.dtype, seen.strides), value, row))
                writes.append((root, seen.offset))
            continue
        value, row = assembler.root(root)
        value = assembler.cast(value, root.dtype)
        if root.op is Primitive.RESHAPE:  # computed under its old shape, and written as that is seen in the new one
            below = views.reshape(place, root_domain(root))
            if below is None:
                raise NeedsBuffer(root)  # written contiguously, and copied from there
            place = below
        seen = assembler.over_domain(place, row)
        stores.append(Store(Operand(root.dtype, seen.strides), value, row))
        writes.append((root, seen.offset))
    spec = KernelSpec(
        domain=group.domain,
        reduce_axis=group.reduce_axes[-1] if group.reduce_axes else None,
        inputs=tuple(assembler.operands),
        body=tuple(assembler.body),
        stores=tuple(stores),
        params=tuple(node.dtype for node in assembler.params),
        name=kernel_name(group),
        pairs=side_by_side(assembler, stores, writes),
        outer_reduce_axis=group.reduce_axes[0] if len(group.reduce_axes) > 1 else None,
    )
    return Kernel(spec, assembler.reads, writes, list(assembler.params))


def parts_of_pair(place: Strided) -> tuple[Strided, Strided]:
    """Where the two parts of every pair of a buffer lie."""
    *shape, _ = place.shape
    *strides, step = place.strides
    first = Strided(tuple(shape), tuple(strides), place.offset)
    return first, first._replace(offset=place.offset + step)


def side_by_side(
    assembler: Assembler, stores: list[Store], writes: list[tuple[Node, int]]
) -> tuple[tuple[int, int], ...]:
    """`KernelSpec.pairs`: operands of one buffer with equal strides, of which one lies an element behind the other."""
    reads = [(r.node, o.strides, r.offset, False) for r, o in zip(assembler.reads, assembler.operands)]
    where = reads + [(node, s.operand.strides, offset, True) for (node, offset), s in zip(writes, stores)]
    number = {place: k for k, place in enumerate(where)}
    found: list[tuple[int, int]] = []
    taken: set[int] = set()
    for a, (node, strides, offset, written) in enumerate(where):
        b = number.get((node, strides, offset + 1, written))
        if b is not None and any(strides) and not {a, b} & taken:
            found.append((a, b))
            taken |= {a, b}
    return tuple(found)


def assemble_copy(fusion: Fusion, source: Node, group: Group, place: Strided) -> Kernel:
    """A kernel that computes `source` and writes it to a part of the group's root (PAD and CONCAT)."""
    root, pair = group.roots[0], source.op is Primitive.PAIR and source not in fusion.materialised
    computed, places = (source.inputs, parts_of_pair(place)) if pair else ((source,), (place,))
    assembler = Assembler(fusion, Group([source], domain=root_domain(source) if pair else source.shape))
    values = [assembler.cast(assembler.visit(value, (), False), source.dtype) for value in computed]
    stores = [Store(Operand(source.dtype, part.strides), value) for part, value in zip(places, values)]
    writes = [(root, part.offset) for part in places]
    spec = KernelSpec(
        domain=assembler.domain,
        reduce_axis=None,
        inputs=tuple(assembler.operands),
        body=tuple(assembler.body),
        stores=tuple(stores),
        params=tuple(node.dtype for node in assembler.params),
        name=f"{root.op.value}_part",
        pairs=side_by_side(assembler, stores, writes),
    )
    return Kernel(spec, assembler.reads, writes, list(assembler.params))


class EpilogueAssembler(Assembler):
    """Emits what an anchor computes of its results: operand 0 stands for them."""

    def __init__(self, fusion: Fusion, group: Group) -> None:
        root = group.roots[0]
        super().__init__(fusion, Group([root], domain=root.shape))
        assert group.anchor is not None
        self.anchor = group.anchor
        self.result = self.cast(self.emit(Kind.LOAD, self.anchor.dtype, index=0), compute_dtype(self.anchor.dtype))
        self.operands.append(Operand(self.anchor.dtype, fusion.place(root).strides))
        self.reads.append(Read(self.anchor, 0))

    def visit_new(self, node: Node, chain: Chain, row: bool) -> int:
        return self.result if node is self.anchor else super().visit_new(node, chain, row)


def assemble_epilogue(fusion: Fusion, group: Group) -> tuple[Body, list[Read]]:
    """What an anchor computes of its results before it stores them, and the operands beside the results."""
    assert group.anchor is not None
    root = group.roots[0]
    assembler = EpilogueAssembler(fusion, group)
    value, _ = assembler.root(root)
    place, columns = fusion.place(root), columns_of(group.anchor)
    kinds = [kind_of(Strided(root.shape, o.strides), place, columns) for o in assembler.operands[1:]]
    known = tuple(kind for kind in kinds if kind is not None)
    assert len(known) == len(kinds), "an operand that does not lie beside the results"
    return Body(tuple(assembler.body), value, known), assembler.reads[1:]


def assemble_fill(root: Node, place: Strided, value: float) -> Kernel:
    """A kernel that writes one constant everywhere."""
    body = (Instr(Kind.CONST, root.dtype, value=value),)
    spec = KernelSpec(place.shape, None, (), body, (Store(Operand(root.dtype, place.strides), 0),), name="fill")
    return Kernel(spec, [], [(root, place.offset)], [])


def kernel_name(group: Group) -> str:
    """A readable name: the operations of the roots."""
    names = []
    for node in group.roots:
        base = base_of(node)
        attrs = base.attrs
        names.append(attrs["fn"].name.lower() if base.op is Primitive.MAP else attrs.get("kind", base.op.value))
    return "_".join(dict.fromkeys(names))[:40]
