"""The passes of compiled functions: which run, in what order, which are off, and what each of them did.

`optimise(graph, ...)` is what `ts.compile` runs on every traced graph; `PLANNING` names what the planner may leave out
(`runtime/plan.py`). Passes are off by name, for one function (`ts.compile(f, disable=("contraction",))`) or for the process
(`TENSORSMITH_DISABLE_PASSES=contraction,algebra`). `TENSORSMITH_DEBUG=1` verifies the graph after each.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from tensorsmith.ir.graph import Graph, Node, Primitive, rewritten
from tensorsmith.ir.verify import VerificationError, verify
from tensorsmith.passes import registry
from tensorsmith.passes.contraction import contract
from tensorsmith.passes.layout import assign_layout
from tensorsmith.passes.recompute import recompute
from tensorsmith.passes.rewrites import ALGEBRA, FOLD, VIEW_RULES, Rule
from tensorsmith.passes.simplify import rewrite, without_dead_code
from tensorsmith.passes.unsafe_rewrites import UNSAFE
from tensorsmith.scalar.table import Fn


class Difference(RuntimeError):
    """A compiled function that does not compute what its operators do one by one."""


@dataclass(frozen=True)
class Pass:
    """A named transformation of graphs. `run(graph, fired)` returns the new graph and counts the rules that applied."""

    name: str
    run: Callable[[Graph, Counter[str]], Graph]


@dataclass
class Report:
    """What a run of passes did: for each pass that ran, in order, how often each of its rules applied."""

    fired: dict[str, Counter[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = []
        for name, counts in self.fired.items():
            rules = ", ".join(f"{rule} ×{count}" for rule, count in sorted(counts.items()))
            lines.append(f"{name}: {rules or 'nothing to do'}")
        return "\n".join(lines)


# Rewrites of single nodes run together, in one walk over the graph; each group is a pass by name.
RULES: dict[str, tuple[Rule, ...]] = {
    "fold": FOLD,  # scalar functions, casts and views of constants
    "algebra": ALGEBRA,  # what keeps every result bit for bit, NaN and signed zeros included
    "views": VIEW_RULES,  # views of views, and views that undo each other
    "unsafe-algebra": UNSAFE,  # what changes last bits, or results at special values
}
OFF_BY_DEFAULT = frozenset({"unsafe-algebra"})
_COMMUTATIVE = frozenset({Fn.ADD, Fn.MUL, Fn.EQ, Fn.NE, Fn.LOGICAL_AND, Fn.LOGICAL_OR, Fn.BITWISE_AND, Fn.BITWISE_OR})


def _contraction(graph: Graph, fired: Counter[str]) -> Graph:
    graph, count = contract(graph)
    if count:
        fired["product and sum"] += count
    return graph


def _common(graph: Graph, fired: Counter[str]) -> Graph:
    """Equal nodes are one by interning; here those whose operands are only in another order."""
    seen: dict[tuple, Node] = {}
    twins: set[Node] = set()
    for node in graph.live_nodes():
        if node.op is Primitive.MAP and node.attrs["fn"] in _COMMUTATIVE and node.inputs[0] is not node.inputs[1]:
            key = (node.attrs["fn"], frozenset(operand.index for operand in node.inputs))
            if seen.setdefault(key, node) is not node:
                twins.add(node)
    if not twins:
        return graph
    fired["operands in another order"] += len(twins)

    def swapped(node: Node, operands: list[Node]) -> Node | None:
        return operands[0].graph.add(node.op, operands[::-1], **node.attrs) if node in twins else None

    return rewritten(graph, swapped)


def _dead(graph: Graph, fired: Counter[str]) -> Graph:
    dead = len(graph.nodes) - len({*graph.live_nodes(), *graph.inputs})
    if not dead:
        return graph
    fired["nodes no output needs"] += dead
    return without_dead_code(graph)


CONTRACTION = Pass("contraction", _contraction)
CSE = Pass("cse", _common)
LAYOUT = Pass("layout", assign_layout)  # images whose channels lie last in memory
DEAD_CODE = Pass("dead-code", _dead)
RECOMPUTE = Pass("recompute", recompute)
GRAPH_PASSES = (CONTRACTION, CSE, LAYOUT, DEAD_CODE, RECOMPUTE)

# What the planner may leave out: kernels of several operators, updates written straight over the old value, temporaries in
# memory that others no longer need.
PLANNING = ("fusion", "in-place", "reuse")


def names() -> tuple[str, ...]:
    """Every pass that `disable` and `enable` of `ts.compile` know, the user's included."""
    return (*RULES, *(p.name for p in GRAPH_PASSES), *PLANNING, *registry.registered())


def check_names(given: Collection[str]) -> None:
    """ValueError for a name that no pass has."""
    known = names()
    for name in given:
        if name not in known:
            raise ValueError(f"there is no pass named {name!r}; there are {', '.join(sorted(known))}")


_of_environment: tuple[str, ...] = tuple(
    name for name in os.environ.get("TENSORSMITH_DISABLE_PASSES", "").replace(" ", "").split(",") if name
)
check_names(_of_environment)


def switched_off() -> tuple:
    """What decides about passes in the whole process: a plan made for another answer is not used."""
    return _of_environment, registry.generation


def verifying() -> bool:
    """Whether graphs are verified between passes."""
    return os.environ.get("TENSORSMITH_DEBUG", "0") not in ("", "0")


def off(disabled: Collection[str] = (), enabled: Collection[str] = ()) -> frozenset[str]:
    """The passes that do not run."""
    return frozenset({*disabled, *_of_environment, *(OFF_BY_DEFAULT - set(enabled))})


def optimise(graph: Graph, left_out: Collection[str] = OFF_BY_DEFAULT, debug: bool | None = None) -> tuple[Graph, Report]:
    """The graph after all passes but those left out, and what they did.

    debug: verify the graph before the first pass and after each (None: as TENSORSMITH_DEBUG says)
    """
    rules: list[Rule] = []
    owner: dict[str, str] = {}
    for name, group in (*RULES.items(), *((name, (rule,)) for name, rule in registry.registered().items())):
        if name not in left_out:
            rules += group
            owner.update((rule.name, name) for rule in group)

    def simplified(graph: Graph, fired: Counter[str]) -> Graph:
        return rewrite(graph, rules, fired) if rules else graph

    first = Pass("simplify", simplified)
    steps = [first, *(step for step in GRAPH_PASSES if step.name not in left_out)]
    graph, report = run_passes(graph, steps, debug=verifying() if debug is None else debug)
    single = report.fired.pop("simplify", Counter())
    by_pass: dict[str, Counter[str]] = {name: Counter() for name in dict.fromkeys(owner.values())}
    for rule, count in single.items():
        by_pass[owner[rule]][rule] = count
    report.fired = {**by_pass, **report.fired}
    return graph, report


def run_passes(graph: Graph, passes: Sequence[Pass], debug: bool = False) -> tuple[Graph, Report]:
    """The graph after these passes, and what they did.

    debug: verify the graph before the first pass and after each one; a VerificationError names the pass.
    """
    report = Report()
    if debug:
        verify(graph)
    for step in passes:
        counts = report.fired.setdefault(step.name, Counter())
        graph = step.run(graph, counts)
        if debug:
            try:
                verify(graph)
            except VerificationError as problem:
                raise VerificationError(f"after pass {step.name!r}: {problem}") from problem
    return graph, report
