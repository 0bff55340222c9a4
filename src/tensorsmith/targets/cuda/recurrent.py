"""Recurrent layers and their gradients on CUDA (`ir/recurrent.py`): a launch, or two, for every step.

    forward    p = W_hh h and the cell in one kernel: a warp takes one unit of the state for some elements of the batch, its
               lanes the products along the state, added in a fixed tree; the state before is read where the step before it
               left it, so no block waits for another
    backward   the cell's gradient, point by point; then dh = d product W_hh, whose warps take parts of the depth

Words: the operands by the names of `operand_names`, then the result. What is along a row is consecutive.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from tensorsmith.core import dtypes
from tensorsmith.core.dtypes import DType
from tensorsmith.core.views import Strided
from tensorsmith.ir.recurrent import GATES, KEPT, Runs, gradients, results, steps
from tensorsmith.scalar.fn import Fn
from tensorsmith.targets.cuda.device_functions import with_dependencies
from tensorsmith.targets.cuda.kernel import Constant, DeviceProperties, Launch, Lowered, Word
from tensorsmith.targets.cuda.scalars import apply_expression, c_type

_ROWS = 8  # elements of the batch that a warp takes
_WARPS = 8
_THREADS = 32 * _WARPS
_BACK_ROWS = 8  # elements of a block of dh


@dataclass(frozen=True)
class RecurrentSpec:
    """One direction of one layer, or its gradient.

    mode, runs, reverse: as in `ir/recurrent.py`; hidden: size of the state; keep: forward, whether what the gradient reads is
    stored; bias: forward, whether there is one; grad_kept: backward, whether what is kept has a gradient of its own
    """

    dtype: DType
    mode: str
    backward: bool
    runs: Runs
    reverse: bool
    hidden: int
    keep: bool = True
    bias: bool = False
    grad_kept: bool = False

    @property
    def batch(self) -> int:
        """Elements of the first step."""
        return self.runs[0][1]

    @property
    def rows(self) -> int:
        """Of all steps together."""
        return sum(length * count for length, count in self.runs)


def operand_names(mode: str, backward: bool, one_more: bool) -> tuple[str, ...]:
    """What a launch is given before the result; one_more: the bias, or the gradient of what is kept."""
    cell = mode == "lstm"
    if backward:
        names = ("grad", "grad_hidden", *(("grad_cell",) if cell else ()), "kept", "hidden", *(("cell",) if cell else ()), "w")
        return (*names, *(("grad_kept",) if one_more else ()))
    return ("gates", "hidden", *(("cell",) if cell else ()), "w", *(("bias",) if one_more else ()))


def lower_recurrent(
    spec: RecurrentSpec, operands: Mapping[str, Strided], properties: DeviceProperties | None = None
) -> Lowered:
    """The launches of all steps. operands: where they lie, by the names of `operand_names`, strides in elements."""
    names = operand_names(spec.mode, spec.backward, spec.grad_kept if spec.backward else spec.bias)
    words = len(names) + 1
    given = tuple(Word(number) for number in range(words))
    batch, hidden, rows = spec.batch, spec.hidden, spec.rows
    shapes = gradients(spec.mode, rows, batch, hidden) if spec.backward else results(spec.mode, spec.keep, rows, batch, hidden)
    kept = _starts(results(spec.mode, True, rows, batch, hidden))
    places = [_starts(shapes).get(name, 0) for name in _places(spec)] + [kept.get(name, 0) for name in _KEPT_PLACES]
    row_strides = [operands[name].strides[0] for name in names if name in _WITH_ROWS]
    order = steps(spec.runs, spec.reverse)
    launches = []

    def launch(text: str, name: str, grid: tuple[int, int], step: tuple[int, ...]) -> None:
        constant = Constant((hidden, *step, *places, *row_strides))
        launches.append(Launch(text, name, (*grid, 1), (_THREADS, 1, 1), (*given, constant)))

    if not spec.backward:
        text = _forward_text(spec.dtype, spec.mode, spec.keep, spec.bias)
        for step in order:
            grid = (-(-hidden // _WARPS), -(-step.rows // _ROWS))
            launch(text, f"kernel_{spec.mode}", grid, step)
    else:
        cell_text = _cell_text(spec.dtype, spec.mode, spec.grad_kept)
        state_text = _state_text(spec.dtype, spec.mode, spec.grad_kept)
        launch(_begin_text(spec.dtype, spec.mode, spec.grad_kept), f"kernel_{spec.mode}_gradient_begin",
               (-(-batch * hidden // _THREADS), 1), (0, batch, 0, 0))  # fmt: skip
        for step in reversed(order):
            launch(cell_text, f"kernel_{spec.mode}_gradient_cell", (-(-step.rows * hidden // _THREADS), 1), step)
            grid = (-(-hidden // 32), -(-step.rows // _BACK_ROWS))
            launch(state_text, f"kernel_{spec.mode}_gradient_state", grid, step)
    flops = 2 * rows * GATES[spec.mode] * hidden * hidden
    numbers = hidden * hidden * GATES[spec.mode] + sum(math.prod(s) for s in shapes.values()) + rows * hidden * GATES[spec.mode]
    name = f"{spec.mode}{'_gradient' if spec.backward else ''}"
    return Lowered(name, tuple(launches), words, (), numbers * spec.dtype.itemsize, flops)


_WITH_ROWS = ("gates", "hidden", "cell", "w", "grad", "grad_hidden", "grad_cell")
_KEPT_PLACES = ("states", "cells", "parts")


def _places(spec: RecurrentSpec) -> tuple[str, ...]:
    return ("gates", "product", "hidden", "cell") if spec.backward else ("states", "hidden", "cell", "cells", "parts")


def _starts(shapes: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Where the results begin in a flat value."""
    found, start = {}, 0
    for name, shape in shapes.items():
        found[name] = start
        start += math.prod(shape)
    return found


def _head(dtype: DType, mode: str, backward: bool, one_more: bool) -> tuple[str, str]:
    """The struct of sizes, and the parameters of a kernel."""
    names = operand_names(mode, backward, one_more)
    places = ("gates", "product", "hidden", "cell") if backward else ("states", "hidden", "cell", "cells", "parts")
    fields = ["hidden", "at", "rows", "before", "linked", *(f"at_{name}" for name in places)]
    fields += [*(f"kept_{name}" for name in _KEPT_PLACES), *(f"{name}_row" for name in names if name in _WITH_ROWS)]
    kind = c_type(dtype)
    parameters = ", ".join([*(f"const {kind}* {name}" for name in names), f"{kind}* result", "const Sizes sizes"])
    return f"struct Sizes {{ long long {', '.join(fields)}; }};", parameters


def _apply(fn: Fn, dtype: DType, *arguments: str) -> str:
    return f"({apply_expression(fn, dtype, list(arguments))})"


def _fused(dtype: DType) -> str:
    """The function a b + c, rounded once."""
    return "fmaf" if dtype is dtypes.float32 else "fma"


def _assembled(sizes: str, kernel: str) -> str:
    return "\n\n".join(part for part in (with_dependencies(kernel), sizes, kernel) if part)


@functools.cache
def _forward_text(dtype: DType, mode: str, keep: bool, bias: bool) -> str:
    sizes, parameters = _head(dtype, mode, False, bias)
    kind, gates, rows = c_type(dtype), GATES[mode], _ROWS
    sums_count = 1 << (gates * rows - 1).bit_length()

    def a(gate: int) -> str:
        return f"gates[number * sizes.gates_row + {gate} * H + unit]"

    def p(gate: int) -> str:
        return f"(p{gate} + bias[{gate} * H + unit])" if bias else f"p{gate}"

    if mode == "lstm":
        cell = [f"const {kind} {name} = {_apply(fn, dtype, f'({a(k)} + {p(k)})')};" for k, (name, fn) in enumerate(
            [("in", Fn.SIGMOID), ("keep", Fn.SIGMOID), ("g", Fn.TANH), ("out", Fn.SIGMOID)])]  # fmt: skip
        cell += [
            f"{kind}* of_cell = result + sizes.at_cell + row * H + unit;",
            f"const {kind} old = row < sizes.linked ? *of_cell : cell[row * sizes.cell_row + unit];",
            f"const {kind} next = keep * old + in * g;",
            "*of_cell = next;",
            f"const {kind} state = out * {_apply(Fn.TANH, dtype, 'next')};",
        ]
        if keep:
            cell += ["result[sizes.at_cells + number * H + unit] = next;"]
            cell += [f"parts[{k} * H] = {name};" for k, name in enumerate(("in", "keep", "g", "out"))]
    elif mode == "gru":
        cell = [
            f"const {kind} reset = {_apply(Fn.SIGMOID, dtype, f'({a(0)} + {p(0)})')};",
            f"const {kind} stay = {_apply(Fn.SIGMOID, dtype, f'({a(1)} + {p(1)})')};",
            f"const {kind} of_state = {p(2)};",
            f"const {kind} next = {_apply(Fn.TANH, dtype, f'({a(2)} + reset * of_state)')};",
            f"const {kind} state = next + stay * (before(row)[unit] - next);",
        ]
        if keep:
            cell += [f"parts[{k} * H] = {name};" for k, name in enumerate(("reset", "stay", "next", "of_state"))]
    else:
        fn = Fn.TANH if mode == "rnn_tanh" else Fn.RELU
        cell = [f"const {kind} total = {a(0)} + {p(0)};", f"const {kind} state = {_apply(fn, dtype, 'total')};"]
    if keep and KEPT[mode]:
        cell.insert(0, f"{kind}* parts = result + sizes.at_parts + number * {KEPT[mode]} * H + unit;")
    sums = "\n    ".join(
        f"const {kind} p{gate} = __shfl_sync(0xffffffffu, sum[0], {gate * rows} + lane % {rows});" for gate in range(gates)
    )
    lines = "\n    ".join(cell)
    kernel = f"""extern "C" __global__ void __launch_bounds__({_THREADS}) kernel_{mode}({parameters}) {{
    const int lane = threadIdx.x % 32;
    const long long H = sizes.hidden, unit = blockIdx.x * {_WARPS}ll + threadIdx.x / 32, first = blockIdx.y * {rows}ll;
    if (unit >= H) return;
    // The state before: of the step before, or the first one.
    auto before = [&](long long row) {{
        return row < sizes.linked ? result + sizes.at_states + (sizes.before + row) * H : hidden + row * sizes.hidden_row;
    }};
    const {kind}* from[{rows}];
    #pragma unroll
    for (int r = 0; r < {rows}; r++) from[r] = before(first + r < sizes.rows ? first + r : first);
    {kind} sum[{sums_count}] = {{}};  // of gate g and row r at g * {rows} + r
    for (long long k = lane; k < H; k += 32) {{
        {kind} weight[{gates}];
        #pragma unroll
        for (int g = 0; g < {gates}; g++) weight[g] = w[(g * H + unit) * sizes.w_row + k];
        #pragma unroll
        for (int r = 0; r < {rows}; r++) {{
            const {kind} state = from[r][k];
            #pragma unroll
            for (int g = 0; g < {gates}; g++) sum[g * {rows} + r] = {_fused(dtype)}(weight[g], state, sum[g * {rows} + r]);
        }}
    }}
    // Lane l gets the sum over all lanes of sum[l]: in every round a lane gives away half of what it has.
    {_rounds(kind, sums_count)}
    {sums}
    const long long row = first + lane, number = sizes.at + row;
    if (lane >= {rows} || row >= sizes.rows) return;
    {lines}
    result[sizes.at_states + number * H + unit] = state;
    result[sizes.at_hidden + row * H + unit] = state;
}}
"""
    return _assembled(sizes, kernel)


def _rounds(kind: str, count: int) -> str:
    """The sums over all lanes of `count` values, a power of two: lane l has number l % count in sum[0]."""
    lines, width = [], count // 2
    while width:
        lines += [
            "#pragma unroll",
            f"for (int i = 0; i < {width}; i++) {{",
            f"    const {kind} given = lane & {width} ? sum[i] : sum[i + {width}];",
            f"    const {kind} own = lane & {width} ? sum[i + {width}] : sum[i];",
            f"    sum[i] = own + __shfl_xor_sync(0xffffffffu, given, {width});",
            "}",
        ]
        width //= 2
    while count < 32:
        lines.append(f"sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], {count});")
        count *= 2
    return "\n    ".join(lines)


@functools.cache
def _begin_text(dtype: DType, mode: str, grad_kept: bool) -> str:
    sizes, parameters = _head(dtype, mode, True, grad_kept)
    cell = "\n    result[sizes.at_cell + i] = grad_cell[row * sizes.grad_cell_row + unit];" if mode == "lstm" else ""
    kernel = f"""extern "C" __global__ void __launch_bounds__({_THREADS}) kernel_{mode}_gradient_begin({parameters}) {{
    const long long i = blockIdx.x * {_THREADS}ll + threadIdx.x, row = i / sizes.hidden, unit = i % sizes.hidden;
    if (row >= sizes.rows) return;
    result[sizes.at_hidden + i] = grad_hidden[row * sizes.grad_hidden_row + unit];{cell}
}}
"""
    return _assembled(sizes, kernel)


@functools.cache
def _cell_text(dtype: DType, mode: str, grad_kept: bool) -> str:
    """Gradients of the gates of one step from those of its state."""
    sizes, parameters = _head(dtype, mode, True, grad_kept)
    kind, gates = c_type(dtype), GATES[mode]
    own = [f" + own[{k} * H]" if grad_kept else "" for k in range(4)]
    lines = [
        f"const {kind} given = grad[number * sizes.grad_row + unit] + result[sizes.at_hidden + i];",
        f"{kind}* gates = result + sizes.at_gates + number * {gates} * H + unit;",
    ]
    if KEPT[mode]:
        lines.append(f"const {kind}* parts = kept + sizes.kept_parts + number * {KEPT[mode]} * H + unit;")
        if grad_kept:
            lines.append(f"const {kind}* own = grad_kept + sizes.kept_parts + number * {KEPT[mode]} * H + unit;")
    if mode == "lstm":
        own_cell = " + grad_kept[sizes.kept_cells + number * H + unit]" if grad_kept else ""
        lines += [
            f"const {kind} in = parts[0], keep = parts[H], g = parts[2 * H], out = parts[3 * H];",
            f"const {kind} t = {_apply(Fn.TANH, dtype, 'kept[sizes.kept_cells + number * H + unit]')};",
            f"const {kind} old = row < sizes.linked ? kept[sizes.kept_cells + (sizes.before + row) * H + unit]",
            "    : cell[row * sizes.cell_row + unit];",
            f"const {kind} change = result[sizes.at_cell + i] + given * out * (1 - t * t){own_cell};",
            f"gates[0] = (change * g{own[0]}) * in * (1 - in);",
            f"gates[H] = (change * old{own[1]}) * keep * (1 - keep);",
            f"gates[2 * H] = (change * in{own[2]}) * (1 - g * g);",
            f"gates[3 * H] = (given * t{own[3]}) * out * (1 - out);",
            "result[sizes.at_cell + i] = change * keep;",
        ]
    elif mode == "gru":
        lines += [
            f"{kind}* product = result + sizes.at_product + number * {gates} * H + unit;",
            f"const {kind} reset = parts[0], stay = parts[H], next = parts[2 * H], of_state = parts[3 * H];",
            f"const {kind} old = row < sizes.linked ? kept[sizes.kept_states + (sizes.before + row) * H + unit]",
            "    : hidden[row * sizes.hidden_row + unit];",
            f"const {kind} to_new = (given * (1 - stay){own[2]}) * (1 - next * next);",
            f"const {kind} to_reset = (to_new * of_state{own[0]}) * reset * (1 - reset);",
            f"const {kind} to_stay = (given * (old - next){own[1]}) * stay * (1 - stay);",
            "gates[0] = to_reset;",
            "gates[H] = to_stay;",
            "gates[2 * H] = to_new;",
            "product[0] = to_reset;",
            "product[H] = to_stay;",
            f"product[2 * H] = to_new * reset{own[3]};",
            "result[sizes.at_hidden + i] = given * stay;",
        ]
    else:
        lines.append(f"const {kind} state = kept[sizes.kept_states + number * H + unit];")
        lines.append(f"gates[0] = {'given * (1 - state * state)' if mode == 'rnn_tanh' else 'state <= 0 ? 0 : given'};")
    body = "\n    ".join(lines)
    kernel = f"""extern "C" __global__ void __launch_bounds__({_THREADS}) kernel_{mode}_gradient_cell({parameters}) {{
    const long long i = blockIdx.x * {_THREADS}ll + threadIdx.x, H = sizes.hidden, row = i / H, unit = i % H;
    if (row >= sizes.rows) return;
    const long long number = sizes.at + row;
    {body}
}}
"""
    return _assembled(sizes, kernel)


@functools.cache
def _state_text(dtype: DType, mode: str, grad_kept: bool) -> str:
    """dh = d product W of one step: a lane has a column, a warp a part of the depth."""
    sizes, parameters = _head(dtype, mode, True, grad_kept)
    kind, gates = c_type(dtype), GATES[mode]
    more = "result[sizes.at_hidden + (first + r) * H + unit] + " if mode == "gru" else ""
    kernel = f"""extern "C" __global__ void __launch_bounds__({_THREADS}) kernel_{mode}_gradient_state({parameters}) {{
    __shared__ {kind} parts[{_WARPS}][{_BACK_ROWS}][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long H = sizes.hidden, depth = {gates} * H, unit = blockIdx.x * 32ll + lane, first = blockIdx.y * {_BACK_ROWS}ll;
    const long long part = (depth + {_WARPS - 1}) / {_WARPS}, low = warp * part, high = low + part < depth ? low + part : depth;
    const {kind}* product = result + sizes.at_{"product" if mode == "gru" else "gates"} + (sizes.at + first) * depth;
    const int rows = sizes.rows - first < {_BACK_ROWS} ? (int)(sizes.rows - first) : {_BACK_ROWS};
    {kind} sum[{_BACK_ROWS}] = {{}};
    if (unit < H) {{
        for (long long k = low; k < high; k++) {{
            const {kind} weight = w[k * sizes.w_row + unit];
            #pragma unroll
            for (int r = 0; r < {_BACK_ROWS}; r++) {{
                sum[r] = {_fused(dtype)}(weight, product[(r < rows ? r : 0) * depth + k], sum[r]);
            }}
        }}
    }}
    #pragma unroll
    for (int r = 0; r < {_BACK_ROWS}; r++) parts[warp][r][lane] = sum[r];
    __syncthreads();
    const int r = warp;  // every warp adds the parts of one row
    if (unit >= H || r >= rows) return;
    {kind} total = parts[0][r][lane];
    #pragma unroll
    for (int other = 1; other < {_WARPS}; other++) total += parts[other][r][lane];
    result[sizes.at_hidden + (first + r) * H + unit] = {more}total;
}}
"""
    return _assembled(sizes, kernel)
