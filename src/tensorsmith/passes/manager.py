"""The list of passes: which run, in what order, which are off, and what each of them did.

For looking at passes one by one, and for the tests: each pass is verified there after it ran. Execution itself calls
`simplify` and `prepare` directly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from tensorsmith.ir.graph import Graph
from tensorsmith.ir.verify import VerificationError, verify
from tensorsmith.passes.simplify import simplify


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


SIMPLIFY = Pass("simplify", lambda graph, fired: simplify(graph, fired=fired))
# Changes floating-point results; not among the default passes.
FAST_MATH = Pass("fast-math", lambda graph, fired: simplify(graph, unsafe=True, fired=fired))

DEFAULT: tuple[Pass, ...] = (SIMPLIFY,)


def run_passes(
    graph: Graph, passes: Sequence[Pass] = DEFAULT, disabled: Collection[str] = (), debug: bool = False
) -> tuple[Graph, Report]:
    """The graph after the passes whose names are not in `disabled`, and what they did.

    debug: verify the graph before the first pass and after each one; a VerificationError names the pass.
    Raises ValueError for a name in `disabled` that no pass has.
    """
    known = {p.name for p in (*passes, *DEFAULT, FAST_MATH)}
    for name in disabled:
        if name not in known:
            raise ValueError(f"there is no pass named {name!r}; there are {', '.join(sorted(known))}")
    report = Report()
    if debug:
        verify(graph)
    for step in passes:
        if step.name in disabled:
            continue
        counts = report.fired.setdefault(step.name, Counter())
        graph = step.run(graph, counts)
        if debug:
            try:
                verify(graph)
            except VerificationError as problem:
                raise VerificationError(f"after pass {step.name!r}: {problem}") from problem
    return graph, report
