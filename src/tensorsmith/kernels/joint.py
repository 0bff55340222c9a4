"""A kernel along rows and one of sums over these rows as one description, so that a target reads once what both need.

    rows     over (N, C), reduced along C:  dx of every row
    sums     over (N, C), reduced along N:  sum of dy * h, sum of dy

What is summed is computed by the body of the rows, of operands that are read once and of values of the row that were only
stored for the other kernel. Blocks that take several rows leave the sums of theirs as *partial results* (parts, C), and a
kernel of its own (`JointSpec.joining`) joins those and computes what follows.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

from tensorsmith.core.layout import contiguous_strides
from tensorsmith.ir.graph import Node
from tensorsmith.kernels.assemble import Kernel, Read
from tensorsmith.kernels.factors import factors_behind
from tensorsmith.kernels.spec import Instr, KernelSpec, Kind, Operand

JOINED = frozenset({"sum", "prod", "max", "min"})


@dataclass(frozen=True)
class JointSpec:
    """Two kernels of one step.

    rows:   the kernel along rows, whose body computes what is summed too
    summed: instructions of that body, each with the reduction by which its values are joined over all rows
    ends:   the kernel of the sums with one row for all partial results: `joining` gives it as many as there are
    """

    rows: KernelSpec
    summed: tuple[tuple[int, str], ...]
    ends: KernelSpec

    @property
    def name(self) -> str:
        """Both names."""
        return f"{self.rows.name}_with_{self.ends.name}"[:60]

    def joining(self, parts: int) -> KernelSpec:
        """The kernel that joins so many partial results of every sum, its first operands."""
        axis = self.ends.reduce_axis
        assert axis is not None
        return replace(self.ends, domain=(parts, *self.ends.domain[1:]))

    def __str__(self) -> str:
        sums = ", ".join(f"{kind} of %{value}" for value, kind in self.summed)
        return f"{self.rows}\n  over all rows: {sums}\n{self.ends}"


@dataclass
class JointKernel:
    """A JointSpec with what its words stand for: those of the rows, then those of the ends but for partial results."""

    spec: JointSpec
    rows: Kernel
    ends: Kernel


def join(rows: Kernel, sums: Kernel, written: Set[Node]) -> JointKernel | None:
    """Two assembled kernels over one domain as one; None where the sums are no plain reductions of points.

    written: of what the kernel along the rows stores, what is needed beside the sums
    """
    spec, columns = rows.spec, sums.spec
    reduces = [p for p, instr in enumerate(columns.body) if instr.kind is Kind.REDUCE]
    plain = all(columns.body[p].reduction in JOINED and columns.body[p].dtype.kind == "f" for p in reduces)
    plain = plain and all(columns.body[columns.body[p].args[0]].dtype is columns.body[p].dtype for p in reduces)
    plain = plain and all(store.row for store in columns.stores)
    if not reduces or not plain or any(_behind(columns, p) & set(reduces) != {p} for p in reduces):
        return None
    taken = _Taken(rows, sums)
    try:
        summed = tuple([(taken.value(columns.body[p].args[0]), columns.body[p].reduction) for p in reduces])
    except _OtherPlace:
        return None
    kept = [k for k, (node, _) in enumerate(rows.writes) if node in written]
    stores = tuple([spec.stores[k] for k in kept])
    joined = replace(
        spec, body=tuple(taken.body), inputs=tuple(taken.operands), stores=stores, params=tuple(n.dtype for n in taken.params),
        pairs=(),
    )  # fmt: skip
    ends = _ends(sums, reduces, spec.reduce_axes[0])
    if ends is None or any(read.node in taken.made for read in ends.reads):
        return None
    joined, summed = factors_behind(joined, summed)
    made = JointSpec(joined, summed, ends.spec)
    return JointKernel(made, Kernel(joined, taken.reads, [rows.writes[k] for k in kept], taken.params), ends)


def _behind(spec: KernelSpec, position: int) -> set[int]:
    """What an instruction is made of, itself included."""
    found, waiting = set[int](), [position]
    while waiting:
        current = waiting.pop()
        if current not in found:
            found.add(current)
            waiting += spec.body[current].args
    return found


class _OtherPlace(Exception):
    """A value of the rows is read at another place than where it is made."""


class _Taken:
    """The body of the rows, and what is taken over from the kernel of sums."""

    def __init__(self, rows: Kernel, sums: Kernel) -> None:
        self.sums = sums
        self.body, self.operands = list(rows.spec.body), list(rows.spec.inputs)
        self.reads, self.params = list(rows.reads), list(rows.params)
        self.read_at = {(r.node, o.strides, r.offset): k for k, (r, o) in enumerate(zip(self.reads, self.operands))}
        self.made = {node: (offset, store) for (node, offset), store in zip(rows.writes, rows.spec.stores)}
        self.position: dict[int, int] = {}  # of an instruction of the sums, in the joined body
        self.interned = {_key(instr): p for p, instr in enumerate(self.body)}

    def value(self, wanted: int) -> int:
        for p in sorted(_behind(self.sums.spec, wanted)):
            if p not in self.position:
                self.position[p] = self.take(self.sums.spec.body[p])
        return self.position[wanted]

    def take(self, instr: Instr) -> int:
        if instr.kind is Kind.LOAD:
            read, operand = self.sums.reads[instr.index], self.sums.spec.inputs[instr.index]
            if read.node in self.made:
                offset, store = self.made[read.node]
                if offset != read.offset or store.operand.strides != operand.strides:
                    raise _OtherPlace
                return store.value
            return self.emit(replace(instr, index=self.operand(read, operand)))
        if instr.kind is Kind.PARAM:
            node = self.sums.params[instr.index]
            found = next((k for k, each in enumerate(self.params) if each is node), len(self.params))
            if found == len(self.params):
                self.params.append(node)
            return self.emit(replace(instr, index=found))
        return self.emit(replace(instr, args=tuple([self.position[a] for a in instr.args])))

    def operand(self, read: Read, operand: Operand) -> int:
        key = (read.node, operand.strides, read.offset)
        if key not in self.read_at:
            self.read_at[key] = len(self.operands)
            self.operands.append(operand)
            self.reads.append(read)
        return self.read_at[key]

    def emit(self, instr: Instr) -> int:
        found = self.interned.get(_key(instr))
        if found is None:
            found = self.interned[_key(instr)] = len(self.body)
            self.body.append(instr)
        return found


def _key(instr: Instr) -> tuple[object, ...]:
    return instr.kind, instr.dtype, instr.args, instr.fn, instr.index, repr(instr.value), instr.reduction


def _ends(sums: Kernel, reduces: list[int], axis: int) -> Kernel | None:
    """The kernel of the sums over partial results, which are its first operands, in place of what is summed."""
    spec = sums.spec
    needed = set[int]().union(*[_after(spec, store.value) for store in spec.stores])
    extents = (1, spec.domain[axis])
    body: list[Instr] = []
    inputs = [Operand(spec.body[p].dtype, contiguous_strides(extents)) for p in reduces]
    reads: list[Read] = []
    read_at: dict[int, int] = {}
    position: dict[int, int] = {}

    def emit(instr: Instr) -> int:
        body.append(instr)
        return len(body) - 1

    for p in sorted(needed | set(reduces)):
        instr = spec.body[p]
        if p in reduces:
            loaded = emit(Instr(Kind.LOAD, instr.dtype, index=reduces.index(p)))
            position[p] = emit(replace(instr, args=(loaded,)))
        elif instr.kind is Kind.LOAD:
            if instr.index not in read_at:
                read_at[instr.index] = len(inputs)
                inputs.append(_narrowed(spec.inputs[instr.index], axis))
                reads.append(sums.reads[instr.index])
            position[p] = emit(replace(instr, index=read_at[instr.index]))
        elif instr.kind in (Kind.INDEX, Kind.RANDOM):
            return None
        else:
            position[p] = emit(replace(instr, args=tuple([position[a] for a in instr.args])))
    stores = tuple([replace(s, operand=_narrowed(s.operand, axis), value=position[s.value]) for s in spec.stores])
    made = KernelSpec(extents, 0, tuple(inputs), tuple(body), stores, spec.params, f"{spec.name}_of_parts")
    return Kernel(made, reads, sums.writes, sums.params)


def _after(spec: KernelSpec, position: int) -> set[int]:
    """What an instruction is made of up to the sums."""
    found, waiting = set[int](), [position]
    while waiting:
        current = waiting.pop()
        if current not in found:
            found.add(current)
            if spec.body[current].kind is not Kind.REDUCE:
                waiting += spec.body[current].args
    return found


def _narrowed(operand: Operand, axis: int) -> Operand:
    """An operand of the sums over (parts, kept axis)."""
    return Operand(operand.dtype, (0, operand.strides[axis]))
