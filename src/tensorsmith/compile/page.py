"""An explanation as one HTML page: the graph drawn, the values of each kernel in one colour, the levels folded below.

The page holds everything it shows and refers to nothing outside it. Hovering over a value shows the line of the program that
it comes from, and, where it has memory of its own, why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from tensorsmith.compile.explained import ExplainedPlan
from tensorsmith.compile.source_lines import Line
from tensorsmith.ir.graph import VIEWS, Node, Primitive, format_node

WIDTH, HEIGHT, GAP_X, GAP_Y = 156, 34, 14, 26
STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 1.5em; color: #1d2129; background: #fff }
pre { background: #f5f6f8; padding: .8em; overflow: auto; border-radius: 6px }
.drawing { overflow: auto; border: 1px solid #d9dce1; border-radius: 6px; max-height: 75vh }
svg text { font: 11px ui-monospace, monospace; pointer-events: none }
svg rect { stroke: #6b7280; rx: 4px } svg g:hover rect { stroke: #000; stroke-width: 2px }
svg .memory rect { stroke-width: 2.2px; stroke: #111 } svg path { fill: none; stroke: #9aa1ac }
.swatch { display: inline-block; width: 1em; height: 1em; border: 1px solid #6b7280; vertical-align: -2px; margin-right: .4em }
summary { font-weight: 600; cursor: pointer; margin: .6em 0 } td, th { padding: .1em .8em .1em 0; text-align: left }
"""


def page(title: str, plan: ExplainedPlan, lines: Mapping[Node, Line], names: Sequence[str], levels: Mapping[str, str]) -> str:
    """The page. lines: the program's line of each value; names: of the inputs; levels: heading -> text."""
    parts = [
        "<!DOCTYPE html>", '<html lang="en"><head><meta charset="utf-8">', f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style></head><body>", f"<h1>{escape(title)}</h1>", _legend(plan),
        '<div class="drawing">', drawing(plan, lines, names), "</div>",
    ]  # fmt: skip
    for heading, text in levels.items():
        opened = " open" if heading in ("time", "fusion") else ""
        parts.append(f"<details{opened}><summary>{escape(heading)}</summary><pre>{escape(text)}</pre></details>")
    return "\n".join([*parts, "</body></html>"]) + "\n"


def _colour(number: int) -> str:
    """Colours far from each other: the golden angle around the wheel."""
    return f"hsl({number * 137.508 % 360:.0f} 70% 84%)"


def _legend(plan: ExplainedPlan) -> str:
    rows = []
    for number, group in enumerate(plan.groups):
        title = "; ".join(step.title for step in group.steps)
        rows.append(
            f'<tr><td><span class="swatch" style="background:{_colour(number)}"></span>group {number + 1}</td>'
            f"<td>{escape(title)}</td></tr>"
        )
    return "<table>" + "".join(rows) + "</table>" if rows else "<p>Nothing runs: the results are views.</p>"


def layers(nodes: Sequence[Node]) -> list[list[Node]]:
    """Nodes by the longest way from the inputs, each layer in the order of its operands' places."""
    depth: dict[Node, int] = {}
    place: dict[Node, float] = {}
    found: list[list[Node]] = []
    for node in nodes:
        depth[node] = max((depth[operand] + 1 for operand in node.inputs if operand in depth), default=0)
        while len(found) <= depth[node]:
            found.append([])
        found[depth[node]].append(node)
    for layer in found:
        for node in layer:
            above = [place[operand] for operand in node.inputs if operand in place]
            place[node] = sum(above) / len(above) if above else float(node.index)
        layer.sort(key=lambda node: (place[node], node.index))
        for column, node in enumerate(layer):
            place[node] = float(column)
    return found


def drawing(plan: ExplainedPlan, lines: Mapping[Node, Line], names: Sequence[str]) -> str:
    """The graph as SVG: inputs above, results below, constants left out."""
    graph = plan.plan.graph
    nodes = [node for node in graph.live_nodes() if node.op is not Primitive.CONST]
    rows = layers(nodes)
    group_of: dict[Node, int] = {}
    for number, group in enumerate(plan.groups):
        for node in (*group.roots, *group.inside):
            group_of.setdefault(node, number)
    for node in nodes:  # a view is part of what it looks at
        if node.op in VIEWS and node not in group_of and node.inputs[0] in group_of:
            group_of[node] = group_of[node.inputs[0]]
    why = {node: text for node, text in plan.refusals}
    roots = {root for group in plan.groups for root in group.roots}
    at: dict[Node, tuple[int, int]] = {}
    widest = max((len(row) for row in rows), default=1)
    for depth, row in enumerate(rows):
        start = (widest - len(row)) * (WIDTH + GAP_X) // 2 + GAP_X
        for column, node in enumerate(row):
            at[node] = start + column * (WIDTH + GAP_X), depth * (HEIGHT + GAP_Y) + GAP_Y
    width, height = widest * (WIDTH + GAP_X) + GAP_X, len(rows) * (HEIGHT + GAP_Y) + GAP_Y
    parts = [f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}">']
    for node in nodes:
        x, y = at[node]
        for operand in node.inputs:
            if operand in at:
                a, b = at[operand]
                middle = (b + HEIGHT + y) // 2
                start, end = a + WIDTH // 2, x + WIDTH // 2
                parts.append(f'<path d="M{start} {b + HEIGHT} C{start} {middle} {end} {middle} {end} {y}"/>')
    for node in nodes:
        x, y = at[node]
        said = [repr(node)]
        if node.op is Primitive.INPUT:
            label, number = "input", node.attrs["number"]
            label = names[number] if number < len(names) else f"input {number}"
        else:
            label = format_node(node).split("(")[0]
        if node in lines:
            said.append(str(lines[node]))
        if node in group_of:
            said.append(f"group {group_of[node] + 1}")
        if node in roots or node.op is Primitive.INPUT:
            said.append("in memory" + (f": {why[node]}" if node in why else ""))
        fill = _colour(group_of[node]) if node in group_of else "#f3f4f6"
        kind = "memory" if node in roots else "inside"
        shape = f"{node.dtype.name}{list(node.shape)}"
        parts.append(
            f'<g class="{kind}"><title>{escape(chr(10).join(said))}</title>'
            f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" fill="{fill}"/>'
            f'<text x="{x + 6}" y="{y + 14}">{escape(label[:24])}</text>'
            f'<text x="{x + 6}" y="{y + 28}" fill="#4b5563">{escape(shape[:24])}</text></g>'
        )
    return "\n".join([*parts, "</svg>"])
