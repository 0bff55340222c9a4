"""An explanation as one HTML page: the graph drawn, the values of each kernel in one colour, the levels folded below.

The page holds everything it shows and refers to nothing outside it. Hovering over a value shows the line of the program that
it comes from, and, where it has memory of its own, why. A search finds values by anything that hovering shows, a click on a
kernel of the legend the values of that kernel; large graphs are shown smaller until they are zoomed into.
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
.legend { max-height: 30vh; overflow: auto } .legend tr { cursor: pointer } .tools { margin: .6em 0 }
svg.searched g { opacity: .25 } svg.searched g.found { opacity: 1 } svg .found rect { stroke: #c2410c; stroke-width: 3px }
summary { font-weight: 600; cursor: pointer; margin: .6em 0 } td, th { padding: .1em .8em .1em 0; text-align: left }
"""
TOOLS = """
<p class="tools"><input id="search" type="search" placeholder="find: exp, %12, group 3, model.py:7" size="34">
<span id="count"></span> <label>zoom <input id="zoom" type="range" min="5" max="200" value="100"></label></p>
"""
SCRIPT = """
const box = document.getElementById("search"), svg = document.querySelector("svg"), count = document.getElementById("count");
const frame = document.querySelector(".drawing"), zoom = document.getElementById("zoom");
const size = [svg.width.baseVal.value, svg.height.baseVal.value];
const nodes = [...svg.querySelectorAll("g")].map(g => [g, g.firstChild.textContent.toLowerCase()]);
let found = [], at = 0;
function search(text, whole) {
  const wanted = text.trim().toLowerCase();
  const fits = whole ? said => said.split("\\n").includes(wanted) : said => said.includes(wanted);
  found = wanted ? nodes.filter(([g, said]) => fits(said)).map(([g]) => g) : [];
  for (const [g] of nodes) g.classList.toggle("found", found.includes(g));
  svg.classList.toggle("searched", found.length > 0);
  count.textContent = wanted ? found.length + " found" : "";
  at = 0; show();
}
function show() {
  if (found.length) found[at % found.length].scrollIntoView({block: "center", inline: "center"});
}
function scale(percent) {
  svg.setAttribute("width", size[0] * percent / 100); svg.setAttribute("height", size[1] * percent / 100);
}
box.addEventListener("input", () => search(box.value, false));
box.addEventListener("keydown", event => { if (event.key === "Enter") { at++; show(); } });
zoom.addEventListener("input", () => scale(zoom.value));
for (const row of document.querySelectorAll(".legend tr"))
  row.addEventListener("click", () => { box.value = row.dataset.group; search(box.value, true); });
zoom.value = Math.max(25, Math.min(100, 100 * frame.clientWidth / size[0])); scale(zoom.value);
"""


def page(title: str, plan: ExplainedPlan, lines: Mapping[Node, Line], names: Sequence[str], levels: Mapping[str, str]) -> str:
    """The page. lines: the program's line of each value; names: of the inputs; levels: heading -> text."""
    parts = [
        "<!DOCTYPE html>", '<html lang="en"><head><meta charset="utf-8">', f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style></head><body>", f"<h1>{escape(title)}</h1>", _legend(plan), TOOLS,
        '<div class="drawing">', drawing(plan, lines, names), "</div>", f"<script>{SCRIPT}</script>",
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
            f'<tr data-group="group {number + 1}"><td><span class="swatch" style="background:{_colour(number)}"></span>'
            f"group {number + 1}</td><td>{escape(title)}</td></tr>"
        )
    if not rows:
        return "<p>Nothing runs: the results are views.</p>"
    return '<div class="legend"><table>' + "".join(rows) + "</table></div>"


def layers(nodes: Sequence[Node]) -> list[list[Node]]:
    """Nodes by the longest way from the inputs, each layer in the order of its operands' places.

    What has no operands is placed right above the first that reads it.
    """
    depth: dict[Node, int] = {}
    first: dict[Node, int] = {}
    place: dict[Node, float] = {}
    found: list[list[Node]] = []
    for node in nodes:
        depth[node] = max((depth[operand] + 1 for operand in node.inputs if operand in depth), default=0)
        for operand in node.inputs:
            first[operand] = min(first.get(operand, depth[node]), depth[node])
    for node in nodes:
        level = depth[node] if node.inputs else max(first.get(node, 1) - 1, 0)
        while len(found) <= level:
            found.append([])
        found[level].append(node)
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
