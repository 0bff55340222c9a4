"""Which line of the user's program each value of a graph comes from, kept through passes that rewrite the graph."""

from __future__ import annotations

import difflib
import linecache
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from traceback import FrameSummary
from types import FrameType
from typing import Any

from tensorsmith.autograd.anomaly import PACKAGE, user_trace
from tensorsmith.ir.graph import Graph, Node, format_node

_LIBRARY = (os.path.dirname(os.__file__) + os.sep, "<string>", "<frozen")  # Python's own: its caller is the user's line


@dataclass(frozen=True)
class Line:
    """A line of a program. `str` is "file:number: text"."""

    file: str
    number: int

    def __str__(self) -> str:
        text = linecache.getline(self.file, self.number).strip()
        return f"{Path(self.file).name}:{self.number}" + (f": {text}" if text else "")


def users_line() -> Line | None:
    """The innermost line being executed that is not this package's."""
    frame = users_frame()
    return Line(frame.filename, frame.lineno or 0) if frame is not None else None


def users_frame() -> FrameSummary | None:
    """The innermost call being executed that is neither this package's nor of Python's own library."""
    trace = user_trace()[::-1]
    return next((each for each in trace if not each.filename.startswith(_LIBRARY)), trace[0] if trace else None)


def line_of_change(changed: Callable[[], bool], run: Callable[[], Any]) -> str:
    """The user's line that first makes `changed()` true while `run()`, which may fail, is running; "" where none does."""
    found, before = [""], sys.gettrace()

    def follow(frame: FrameType, event: str, argument: Any) -> Any:
        if found[0] or frame.f_code.co_filename.startswith((PACKAGE, *_LIBRARY)):
            return None
        last = [frame.f_lineno]

        def at_line(frame: FrameType, event: str, argument: Any) -> Any:
            if not found[0] and event in ("line", "return") and changed():
                found[0] = str(Line(frame.f_code.co_filename, last[0]))
            last[0] = frame.f_lineno
            return at_line

        return at_line

    sys.settrace(follow)
    try:
        run()
    except Exception:  # noqa: S110 - the caller has an error of its own to raise
        pass
    finally:
        sys.settrace(before)
    return found[0]


def _signature(node: Node) -> tuple[Any, ...]:
    """What a pass that does not touch a node leaves as it is: everything but the numbers of its operands."""
    head, _, rest = format_node(node).partition("(")
    attributes = tuple(part for part in rest.split(", ") if not part.startswith("%"))
    return head, attributes, node.shape, node.dtype.name


def carried(lines: dict[Node, Line], traced: Graph, settled: Graph) -> dict[Node, Line]:
    """The lines of another graph's values, which passes made of `traced`: of equal values in the same order.

    A value that a pass made new has the line of what it is made of, or of what is made of it.
    """
    if traced is settled:
        return lines
    before, after = traced.live_nodes(), settled.live_nodes()
    match = difflib.SequenceMatcher(None, [_signature(n) for n in before], [_signature(n) for n in after], autojunk=False)
    found: dict[Node, Line] = {}
    for start, other, length in match.get_matching_blocks():
        for old, new in zip(before[start : start + length], after[other : other + length]):
            if old in lines:
                found[new] = lines[old]
    for node in after:
        known = [found[operand] for operand in node.inputs if operand in found]
        if node not in found and known:
            found[node] = known[-1]
    for node in reversed(after):
        if node in found:
            for operand in node.inputs:
                if operand.inputs:
                    found.setdefault(operand, found[node])
    return found
