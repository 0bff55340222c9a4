"""One PTX instruction as C++: a table of patterns of opcodes and of functions of the operands."""

from __future__ import annotations

import re
from collections.abc import Callable

SPECIAL = {
    "%laneid": "emulated_lane()",
    "%warpid": "(machine::thread_in_block() / 32)",
    "%smid": "0u",
    "%nsmid": "4u",
    "%clock": "0u",
    "%clock64": "0ull",
    "%globaltimer": "0ull",
    "%lanemask_eq": "(1u << emulated_lane())",
    "%lanemask_lt": "((1u << emulated_lane()) - 1)",
    "%lanemask_le": "((2u << emulated_lane()) - 1)",
    "%lanemask_gt": "(~((2u << emulated_lane()) - 1))",
    "%lanemask_ge": "(~((1u << emulated_lane()) - 1))",
    "%cluster_ctarank": "emulated_block_rank()",
    "%cluster_nctarank": "(emulated_cluster_size.x * emulated_cluster_size.y * emulated_cluster_size.z)",
}
for _axis in "xyz":
    SPECIAL |= {
        f"%tid.{_axis}": f"emulated_thread.{_axis}",
        f"%ntid.{_axis}": f"emulated_block_size.{_axis}",
        f"%ctaid.{_axis}": f"emulated_block.{_axis}",
        f"%nctaid.{_axis}": f"emulated_grid_size.{_axis}",
        f"%cluster_nctaid.{_axis}": f"emulated_cluster_size.{_axis}",
        f"%cluster_ctaid.{_axis}": f"(emulated_block.{_axis} % emulated_cluster_size.{_axis})",
        f"%clusterid.{_axis}": f"(emulated_block.{_axis} / emulated_cluster_size.{_axis})",
        f"%nclusterid.{_axis}": f"(emulated_grid_size.{_axis} / emulated_cluster_size.{_axis})",
    }


class Refused(Exception):
    """Text that the emulator has no meaning for."""


Operand = str | list[str]


def instruction(opcode: str, rest: str, registers: dict[str, str]) -> str:
    """The C++ statement of `opcode rest`; Refused names an instruction that is not in the table."""
    operands = [_operand(part, registers) for part in _split(rest)] if rest.strip() else []
    for pattern, write in TABLE:
        if match := pattern.fullmatch(opcode):
            return write(match, operands)
    raise Refused(f"the emulator does not know the PTX instruction {opcode!r}")


def _split(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "{[") - (letter in "}]")
        if letter == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()]


def _operand(text: str, registers: dict[str, str]) -> Operand:
    """A register or number as a C++ expression; of {...} and [...] a list of such."""
    if text[0] in "{[":
        return [item for part in _split(text[1:-1]) for item in _flat(_operand(part, registers))]
    if text[0] == "!":
        return f"!{_operand(text[1:], registers)}"
    if "|" in text:
        return [str(_operand(part.strip(), registers)) for part in text.split("|")]
    if text in registers:
        return registers[text]
    if text in SPECIAL:
        return SPECIAL[text]
    if text == "_":
        return "_"
    if match := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", text):
        return f"ptx_as<float>(0x{match.group(1)}u)"
    if match := re.fullmatch(r"0[dD]([0-9a-fA-F]{16})", text):
        return f"ptx_as<double>(0x{match.group(1)}ull)"
    if re.fullmatch(r"[-+]?(0[xX][0-9a-fA-F]+|\d+)U?", text):
        return text.rstrip("U")
    if match := re.fullmatch(r"(%?[\w.]+)\s*([+-])\s*(%?\w+)", text):  # an address and an offset
        left, sign, right = match.groups()
        return f"({_operand(left, registers)} {sign} {_operand(right, registers)})"
    raise Refused(f"the operand {text!r} of a PTX instruction")


def _flat(operand: Operand) -> list[str]:
    return operand if isinstance(operand, list) else [operand]


Writer = Callable[[re.Match[str], list[Operand]], str]
TABLE: list[tuple[re.Pattern[str], Writer]] = []


def _entry(pattern: str) -> Callable[[Writer], Writer]:
    def keep(write: Writer) -> Writer:
        TABLE.append((re.compile(pattern), write))
        return write

    return keep


_C = {
    "u8": "unsigned char", "s8": "signed char", "b8": "unsigned char",
    "u16": "unsigned short", "s16": "short", "b16": "unsigned short", "f16": "unsigned short", "bf16": "unsigned short",
    "u32": "unsigned int", "s32": "int", "b32": "unsigned int", "f16x2": "unsigned int", "bf16x2": "unsigned int",
    "tf32": "unsigned int",
    "u64": "unsigned long long", "s64": "long long", "b64": "unsigned long long", "f32": "float", "f64": "double",
}  # fmt: skip
_ANY = "(?:" + "|".join(sorted(_C, key=len, reverse=True)) + ")"


def _as(kind: str, operand: Operand) -> str:
    return f"ptx_as<{_C[kind]}>({operand})"


def _put(target: Operand, expression: str) -> str:
    return "" if target == "_" else f"ptx_put({target}, {expression});"


# ----------------------------------------------------------------------------------- moves, comparisons, conversions


@_entry(rf"mov\.({_ANY}|pred)")
def _mov(match: re.Match[str], operands: list[Operand]) -> str:
    target, source = operands
    if isinstance(target, list):
        return f"ptx_unpack({source}, {', '.join(target)});"
    if isinstance(source, list):
        return f"{target} = ptx_pack<decltype({target})>({', '.join(source)});"
    return f"ptx_move({target}, {source});"


@_entry(rf"setp\.(eq|ne|lt|le|gt|ge|lo|ls|hi|hs|neu|equ)\.(?:ftz\.)?({_ANY})")
def _setp(match: re.Match[str], operands: list[Operand]) -> str:
    sign = {"eq": "==", "equ": "==", "ne": "!=", "neu": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<",
            "ls": "<=", "hi": ">", "hs": ">="}[match.group(1)]  # fmt: skip
    kind = match.group(2)
    return f"{operands[0]} = {_as(kind, operands[1])} {sign} {_as(kind, operands[2])};"


@_entry(rf"selp\.({_ANY})")
def _selp(match: re.Match[str], operands: list[Operand]) -> str:
    target, yes, no, predicate = operands
    return _put(target, f"{predicate} ? {_as(match.group(1), yes)} : {_as(match.group(1), no)}")


@_entry(r"(and|or|xor|not)\.pred")
def _predicates(match: re.Match[str], operands: list[Operand]) -> str:
    if match.group(1) == "not":
        return f"{operands[0]} = !{operands[1]};"
    return f"{operands[0]} = {operands[1]} {dict(zip(('and', 'or', 'xor'), '&|^'))[match.group(1)]} {operands[2]};"


@_entry(r"cvt(?:\.(rn|rz|rna|rni|rzi|rmi|rpi|rm|rp))?((?:\.(?:ftz|sat|satfinite|relu))*)\.(\w+)\.(\w+)")
def _cvt(match: re.Match[str], operands: list[Operand]) -> str:
    rounding, extras, target, source = match.groups()
    if "satfinite" in extras and target != "tf32":
        raise Refused(match.group())
    halves = {"f16": "float16", "bf16": "bfloat16"}

    def shaped(value: str) -> str:
        value = f"ptx_relu({value})" if "relu" in extras else value
        return f"ptx_saturated({value})" if re.search(r"\.sat\b", extras) else value

    if target in ("f16x2", "bf16x2") and source == "f32":
        kind = halves[target[:-2]]
        cut = "true" if rounding == "rz" else "false"
        high, low = (f"ptx_narrow_{kind}({shaped(_as('f32', o))}, {cut})" for o in operands[1:])
        return _put(operands[0], f"((unsigned int){high} << 16 | {low})")
    if target in halves and source in ("f32", "f64"):
        toward_zero = "true" if rounding == "rz" else "false"
        return _put(operands[0], f"ptx_narrow_{halves[target]}({shaped(f'(float){_as(source, operands[1])}')}, {toward_zero})")
    if source in halves and target in ("f32", "f64"):
        return _put(operands[0], f"({_C[target]}){shaped(f'ptx_widen_{halves[source]}({operands[1]})')}")
    if target == "tf32" and source == "f32" and rounding in ("rna", "rn"):
        return _put(operands[0], f"ptx_round_tf32({_as('f32', operands[1])})")
    if source in halves and target in halves:
        return _put(operands[0], f"ptx_narrow_{halves[target]}({shaped(f'ptx_widen_{halves[source]}({operands[1]})')}, false)")
    if target not in _C or source not in _C or "x2" in target + source:
        raise Refused(f"the emulator does not know the PTX instruction {match.group()!r}")
    value = _as(source, operands[1])
    if source[0] == "f" and target[0] in "us":
        function = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}[rounding or "rzi"]
        return _put(operands[0], f"ptx_to_integer<{_C[target]}>({function}({value}))")
    if source in halves or target in halves:
        raise Refused(f"the emulator does not know the PTX instruction {match.group()!r}")
    if target[0] == "f" and source == target and rounding in ("rni", "rzi", "rmi", "rpi"):
        function = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}[rounding]
        return _put(operands[0], f"{function}({value})")
    if re.search(r"\.sat\b", extras) and target[0] in "us":
        raise Refused(f"the emulator does not know the PTX instruction {match.group()!r}")
    return _put(operands[0], shaped(f"({_C[target]}){value}") if target[0] == "f" else f"({_C[target]}){value}")


# ------------------------------------------------------------------------------------------------------------ arithmetic

_SIGNS = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}
_FLOATING = "(?:f32|f64)"
_ROUNDED = r"(?:\.rn)?(?:\.ftz)?"


@_entry(rf"(add|sub|mul){_ROUNDED}\.({_FLOATING})")
def _floating(match: re.Match[str], operands: list[Operand]) -> str:
    sign, kind = match.groups()
    return _put(operands[0], f"{_as(kind, operands[1])} {_SIGNS[sign]} {_as(kind, operands[2])}")


@_entry(rf"(?:fma|mad){_ROUNDED}\.(f32|f64)")
def _fma(match: re.Match[str], operands: list[Operand]) -> str:
    a, b, c = (_as(match.group(1), o) for o in operands[1:])
    return _put(operands[0], f"fma({a}, {b}, {c})")


@_entry(r"(min|max)(?:\.ftz)?(\.NaN)?\.(f32|f64)")
def _least(match: re.Match[str], operands: list[Operand]) -> str:
    name, keeps_nan, kind = match.groups()
    a, b = (_as(kind, o) for o in operands[1:])
    expression = f"f{name}({a}, {b})"
    return _put(operands[0], f"({a} != {a} || {b} != {b} ? {a} + {b} : {expression})" if keeps_nan else expression)


@_entry(r"(neg|abs)(?:\.ftz)?\.(f32|f64)")
def _sign(match: re.Match[str], operands: list[Operand]) -> str:
    value = _as(match.group(2), operands[1])
    return _put(operands[0], f"-{value}" if match.group(1) == "neg" else f"fabs({value})")


@_entry(r"(ex2|lg2|rcp|rsqrt|sqrt|sin|cos|tanh)\.(?:approx|rn)(?:\.ftz)?\.(f32|f64)")
def _function(match: re.Match[str], operands: list[Operand]) -> str:
    name, kind = match.groups()
    x = _as(kind, operands[1])
    called = {"ex2": f"exp2({x})", "lg2": f"log2({x})", "rcp": f"1 / {x}", "rsqrt": f"rsqrt({x})", "sqrt": f"sqrt({x})",
              "sin": f"sin({x})", "cos": f"cos({x})", "tanh": f"tanh({x})"}[name]  # fmt: skip
    return _put(operands[0], called)


@_entry(r"(ex2|tanh)\.approx(?:\.ftz)?\.(f16|bf16)(x2)?")
def _function_of_halves(match: re.Match[str], operands: list[Operand]) -> str:
    name, kind, pair = match.groups()
    function = {"ex2": "exp2", "tanh": "tanh"}[name]
    half = {"f16": "float16", "bf16": "bfloat16"}[kind]
    body = f"ptx_narrow_{half}({function}(ptx_widen_{half}(x)), false)"
    if pair is None:
        return f"{{ const unsigned short x = {operands[1]}; {_put(operands[0], body)} }}"
    act = f"[](unsigned short x, unsigned short, unsigned short) {{ return {body}; }}"
    return _put(operands[0], f"ptx_pairs({operands[1]}, 0u, 0u, {act})")


@_entry(r"(add|sub|mul|fma|min|max)(?:\.rn)?(?:\.ftz)?(\.NaN)?(\.relu)?\.(f16|bf16)(x2)?")
def _halves(match: re.Match[str], operands: list[Operand]) -> str:
    name, keeps_nan, relu, kind, pair = match.groups()
    half = {"f16": "float16", "bf16": "bfloat16"}[kind]
    a, b, c = (f"ptx_widen_{half}({letter})" for letter in "abc")
    body = {"fma": f"ptx_fma_once({a}, {b}, {c})", "min": f"fminf({a}, {b})", "max": f"fmaxf({a}, {b})"}.get(
        name, f"{a} {_SIGNS.get(name, '')} {b}"
    )
    if keeps_nan:
        body = f"({a} != {a} || {b} != {b} ? {a} + {b} : {body})"
    body = f"ptx_narrow_{half}({f'ptx_relu({body})' if relu else body}, false)"
    third = operands[3] if name == "fma" else "0"
    if pair is None:
        return f"{{ const unsigned short a = {operands[1]}, b = {operands[2]}, c = {third}; {_put(operands[0], body)} }}"
    act = f"[](unsigned short a, unsigned short b, unsigned short c) {{ return {body}; }}"
    return _put(operands[0], f"ptx_pairs({operands[1]}, {operands[2]}, {third}, {act})")


_INTEGER = "(?:[us](?:16|32|64))"


@_entry(rf"(add|sub)\.({_INTEGER})")
def _integers(match: re.Match[str], operands: list[Operand]) -> str:
    sign, kind = match.groups()
    return _put(operands[0], f"({_C[kind]})({_as(kind, operands[1])} {_SIGNS[sign]} {_as(kind, operands[2])})")


@_entry(rf"(mul|mad)\.(lo|hi|wide)\.({_INTEGER})")
def _product(match: re.Match[str], operands: list[Operand]) -> str:
    name, part, kind = match.groups()
    signed = "" if kind[0] == "s" else "unsigned "
    product = f"(({signed}__int128){_as(kind, operands[1])} * {_as(kind, operands[2])})"
    bits = int(kind[1:])
    result = {"lo": kind, "hi": kind, "wide": f"{kind[0]}{2 * bits}"}[part]
    expression = f"({_C[result]})({product} >> {bits if part == 'hi' else 0})"
    if name == "mad":
        expression = f"({_C[result]})({expression} + {_as(result, operands[3])})"
    return _put(operands[0], expression)


@_entry(rf"(min|max)\.({_INTEGER})")
def _least_integer(match: re.Match[str], operands: list[Operand]) -> str:
    a, b = (_as(match.group(2), o) for o in operands[1:])
    return _put(operands[0], f"({a} {'<' if match.group(1) == 'min' else '>'} {b} ? {a} : {b})")


@_entry(r"(and|or|xor)\.b(16|32|64)")
def _bits(match: re.Match[str], operands: list[Operand]) -> str:
    kind = f"b{match.group(2)}"
    return _put(operands[0], f"({_C[kind]})({_as(kind, operands[1])} {_SIGNS[match.group(1)]} {_as(kind, operands[2])})")


@_entry(r"not\.b(16|32|64)")
def _not(match: re.Match[str], operands: list[Operand]) -> str:
    kind = f"b{match.group(1)}"
    return _put(operands[0], f"({_C[kind]})~{_as(kind, operands[1])}")


@_entry(r"(shl|shr)\.([bus](?:16|32|64))")
def _shift(match: re.Match[str], operands: list[Operand]) -> str:
    name, kind = match.groups()
    value, bits = _as(kind, operands[1]), int(kind[1:])
    count = f"(unsigned int)({operands[2]})"
    beyond = f"({value} < 0 ? -1 : 0)" if kind[0] == "s" else "0"
    shifted = f"{value} {'<<' if name == 'shl' else '>>'} {count}"
    return _put(operands[0], f"({_C[kind]})({count} < {bits} ? {shifted} : {beyond})")


@_entry(r"lop3\.b32")
def _lop3(match: re.Match[str], operands: list[Operand]) -> str:
    return _put(operands[0], f"ptx_lop3({', '.join(str(o) for o in operands[1:])})")


@_entry(r"prmt\.b32")
def _prmt(match: re.Match[str], operands: list[Operand]) -> str:
    return _put(operands[0], f"__byte_perm({', '.join(str(o) for o in operands[1:])})")


@_entry(r"shf\.(l|r)\.(wrap|clamp)\.b32")
def _funnel(match: re.Match[str], operands: list[Operand]) -> str:
    if match.group(2) == "clamp":
        raise Refused("shf.clamp")
    return _put(operands[0], f"__funnelshift_{match.group(1)}({', '.join(str(o) for o in operands[1:])})")


@_entry(r"(popc|clz|brev)\.b32")
def _count(match: re.Match[str], operands: list[Operand]) -> str:
    return _put(operands[0], f"__{match.group(1)}({operands[1]})")


# ------------------------------------------------------------------------------------------------- loads and stores

_SPACES = r"(?:\.(global|shared::cta|shared::cluster|shared|local|param))?"
_ORDER = r"(?:\.(?:volatile|relaxed|acquire|release|weak|acq_rel))?(?:\.(?:cta|cluster|gpu|sys))?"
_HINTS = r"(?:\.(?:nc|ca|cg|cs|lu|cv|wb|wt|L1::\w+|L2::\w+))*"


def _place(space: str | None, address: Operand, size: str) -> str:
    (address,) = address if isinstance(address, list) else [address]
    return f"ptx_place({'true' if space and space.startswith('shared') else 'false'}, {address}, {size})"


@_entry(rf"ld{_ORDER}{_SPACES}{_HINTS}(?:\.(v2|v4|v8))?\.({_ANY})")
def _load(match: re.Match[str], operands: list[Operand]) -> str:
    space, vector, kind = match.groups()
    targets = operands[0] if isinstance(operands[0], list) else [operands[0]]
    count = int(vector[1:]) if vector else 1
    if len(targets) != count:
        raise Refused(f"{match.group()} of {len(targets)} registers")
    place = _place(space, operands[1], f"{count} * sizeof({_C[kind]})")
    reads = " ".join(_put(t, f"from[{i}]") for i, t in enumerate(targets))
    return f"const {_C[kind]}* from = (const {_C[kind]}*){place}; {reads}"


@_entry(rf"st{_ORDER}{_SPACES}{_HINTS}(?:\.(v2|v4|v8))?\.({_ANY})")
def _store(match: re.Match[str], operands: list[Operand]) -> str:
    space, vector, kind = match.groups()
    values = operands[1] if isinstance(operands[1], list) else [operands[1]]
    count = int(vector[1:]) if vector else 1
    if len(values) != count:
        raise Refused(f"{match.group()} of {len(values)} registers")
    place = _place(space, operands[0], f"{count} * sizeof({_C[kind]})")
    writes = " ".join(f"to[{i}] = {_as(kind, v)};" for i, v in enumerate(values))
    return f"{_C[kind]}* to = ({_C[kind]}*){place}; {writes} machine::progress();"


@_entry(rf"(atom|red){_ORDER}{_SPACES}{_ORDER}\.(add|min|max|and|or|xor|exch|cas)(?:\.noftz)?\.({_ANY})")
def _atomic(match: re.Match[str], operands: list[Operand]) -> str:
    name, space, operation, kind = match.groups()
    if kind in ("f16", "bf16", "f16x2", "bf16x2"):
        raise Refused(f"the emulator does not know the PTX instruction {match.group()!r}")
    target, address, values = (operands[0], operands[1], operands[2:]) if name == "atom" else ("_", operands[0], operands[1:])
    place = _place(space, address, f"sizeof({_C[kind]})")
    given = [_as(kind, v) for v in values]
    change = {"add": "old + {0}", "min": "old < {0} ? old : {0}", "max": "old > {0} ? old : {0}", "and": "old & {0}",
              "or": "old | {0}", "xor": "old ^ {0}", "exch": "{0}", "cas": "old == {0} ? {1} : old"}[operation]  # fmt: skip
    return (
        f"{_C[kind]}* at = ({_C[kind]}*){place}; const {_C[kind]} old = *at; *at = {change.format(*given)}; "
        f"machine::progress(); {_put(target, 'old')}"
    )


# --------------------------------------------------------------------------- copies into shared memory, matrices of warps


def _inside(operand: Operand) -> str:
    return str(operand[0]) if isinstance(operand, list) else str(operand)


@_entry(r"cp\.async\.(ca|cg)\.shared(?:::cta)?\.global(?:\.L2::\w+)*")
def _cp_async(match: re.Match[str], operands: list[Operand]) -> str:
    size = operands[2]
    read = operands[3] if len(operands) > 3 else size
    only_16 = "true" if match.group(1) == "cg" else "false"
    return f"ptx_copy({_inside(operands[0])}, (const void*){_inside(operands[1])}, {size}, {read}, {only_16});"


@_entry(r"cp\.async\.(commit_group|wait_all|wait_group)")
def _cp_wait(match: re.Match[str], operands: list[Operand]) -> str:
    if match.group(1) == "commit_group":
        return "ptx_copy_commit();"
    return f"ptx_copy_wait({operands[0] if operands else -1});"


@_entry(r"cp\.async\.mbarrier\.arrive(\.noinc)?(?:\.shared(?:::cta)?)?\.b64")
def _cp_arrive(match: re.Match[str], operands: list[Operand]) -> str:
    return f"ptx_copy_arrive({_inside(operands[0])}, {'false' if match.group(1) else 'true'});"


@_entry(r"(ldmatrix|stmatrix)\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.shared(?:::cta)?\.b16")
def _matrices(match: re.Match[str], operands: list[Operand]) -> str:
    name, count, transposed = match.groups()
    flag = "true" if transposed else "false"
    if name == "ldmatrix":
        targets = operands[0] if isinstance(operands[0], list) else [operands[0]]
        moves = " ".join(f"{t} = m[{i}];" for i, t in enumerate(targets))
        return f"unsigned int m[4]; ptx_load_matrices({_inside(operands[1])}, {count}, {flag}, m); {moves}"
    values = operands[1] if isinstance(operands[1], list) else [operands[1]]
    return f"const unsigned int m[4] = {{{', '.join(values)}}}; ptx_store_matrices({_inside(operands[0])}, {count}, {flag}, m);"


@_entry(r"movmatrix\.sync\.aligned\.m8n8\.trans\.b16")
def _movmatrix(match: re.Match[str], operands: list[Operand]) -> str:
    return f"{operands[0]} = ptx_transposed({operands[1]});"


_FORMATS = {"f16": 0, "bf16": 1, "tf32": 2, "s8": 3, "u8": 4, "f64": 5}


@_entry(r"mma\.sync\.aligned\.m(\d+)n8k(\d+)\.row\.col(?:\.satfinite)?\.(f32|f16|s32|f64)\.(\w+)\.(\w+)\.(\w+)")
def _mma(match: re.Match[str], operands: list[Operand]) -> str:
    m, k, result, a, b, c = match.groups()
    allowed = {("16", "16", "f16"), ("16", "8", "f16"), ("16", "16", "bf16"), ("16", "8", "bf16"), ("16", "8", "tf32"),
               ("16", "4", "tf32"), ("16", "32", "s8"), ("16", "16", "s8"), ("16", "32", "u8"), ("16", "16", "u8"),
               ("8", "4", "f64")}  # fmt: skip
    if (m, k, a) not in allowed or a != b or result != c or result == "f16":
        raise Refused(f"the emulator does not know the PTX instruction {match.group()!r}")
    d, left, right, start = (o if isinstance(o, list) else [o] for o in operands)
    bits = {"f64": "b64"}.get(a, "b32")
    take = f"{_C[bits]}"

    def array(name: str, values: list[str], kind: str) -> str:
        return f"{kind} {name}[{len(values)}] = {{{', '.join(f'ptx_as<{kind}>({v})' for v in values)}}};"

    kind = {"f32": "float", "s32": "int", "f64": "double"}[result]
    moves = " ".join(_put(t, f"d[{i}]") for i, t in enumerate(d))
    if len(d) != len(start) or len(d) != (2 if m == "8" else 4):
        raise Refused(f"{match.group()} with {len(d)} results")
    return (
        f"{array('a', left, take)} {array('b', right, take)} {array('d', start, kind)} "
        f"ptx_mma<{kind}, {len(left)}, {len(right)}>({k}, {_FORMATS[a]}, a, b, d); {moves}"
    )


# ----------------------------------------------------------------------------------------------- barriers of all kinds


@_entry(r"(?:bar|barrier)(?:\.cta)?\.(sync|arrive)(?:\.aligned)?")
def _bar(match: re.Match[str], operands: list[Operand]) -> str:
    count = f"(int)({operands[1]})" if len(operands) > 1 else "-1"
    if match.group(1) == "arrive":
        return f"emulated_barrier_arrive({operands[0]}, {count});"
    return f"emulated_barrier({operands[0]}, {count}, 0);"


@_entry(r"bar\.warp\.sync")
def _warp(match: re.Match[str], operands: list[Operand]) -> str:
    return f"__syncwarp({operands[0]});"


@_entry(r"barrier\.cluster\.(arrive|wait)(?:\.(?:release|relaxed|acquire))?(?:\.aligned)?")
def _cluster(match: re.Match[str], operands: list[Operand]) -> str:
    return f"emulated_cluster_{match.group(1)}();"


@_entry(r"mbarrier\.init(?:\.shared(?:::cta)?)?\.b64")
def _mbarrier_init(match: re.Match[str], operands: list[Operand]) -> str:
    return f"ptx_mbarrier_init({_inside(operands[0])}, {operands[1]});"


@_entry(r"mbarrier\.inval(?:\.shared(?:::cta)?)?\.b64")
def _mbarrier_inval(match: re.Match[str], operands: list[Operand]) -> str:
    return f"ptx_mbarrier_end({_inside(operands[0])});"


@_entry(r"mbarrier\.arrive(\.expect_tx)?(?:\.(?:release|relaxed))?(?:\.(?:cta|cluster))?(?:\.shared(?:::cta|::cluster)?)?\.b64")
def _mbarrier_arrive(match: re.Match[str], operands: list[Operand]) -> str:
    if operands[0] != "_" and not (isinstance(operands[0], str) and len(operands) > 1):
        operands = ["_", *operands]
    target, barrier, *rest = operands
    count, expected = ("1", rest[0]) if match.group(1) else (rest[0] if rest else "1", "0")
    return _put(target, f"ptx_mbarrier_arrive({_inside(barrier)}, {count}, {expected})") if target != "_" else (
        f"ptx_mbarrier_arrive({_inside(barrier)}, {count}, {expected});"
    )


@_entry(r"mbarrier\.expect_tx(?:\.relaxed)?(?:\.(?:cta|cluster))?(?:\.shared(?:::cta|::cluster)?)?\.b64")
def _mbarrier_expect(match: re.Match[str], operands: list[Operand]) -> str:
    return f"ptx_mbarrier_arrive({_inside(operands[0])}, 0, {operands[1]});"


@_entry(r"mbarrier\.(try|test)_wait(\.parity)?(?:\.(?:acquire|relaxed))?(?:\.(?:cta|cluster))?(?:\.shared(?:::cta)?)?\.b64")
def _mbarrier_wait(match: re.Match[str], operands: list[Operand]) -> str:
    parity = str(operands[2]) if match.group(2) else f"({operands[2]} >> 63)"
    return f"{operands[0]} = ptx_mbarrier_over({_inside(operands[1])}, {parity});"


@_entry(
    r"fence(?:\.(?:sc|acq_rel|acquire|release|proxy|mbarrier_init|async|alias|tensormap|generic)(?:::\w+)*)*"
    r"(?:\.(?:cta|cluster|gpu|sys|global|shared::cta|shared::cluster|release|acquire|sync_restrict\S*))*"
    r"|membar\.(?:cta|gl|sys)|griddepcontrol\.(?:wait|launch_dependents)|setmaxnreg\.(?:inc|dec)\.sync\.aligned\.u32"
    r"|prefetch(?:u)?(?:\.\S+)?|wgmma\.(?:fence|commit_group)\.sync\.aligned|wgmma\.wait_group\.sync\.aligned"
    r"|cp\.async\.bulk\.prefetch\.\S+|discard\S*|applypriority\S*|pragma|cp\.async\.bulk\.commit_group"
    r"|cp\.async\.bulk\.wait_group(?:\.read)?"
)
def _nothing(match: re.Match[str], operands: list[Operand]) -> str:
    return "machine::progress();"


@_entry(r"createpolicy\.\S+")
def _policy(match: re.Match[str], operands: list[Operand]) -> str:
    return f"{operands[0]} = 0;"


@_entry(r"nanosleep\.u32")
def _sleep(match: re.Match[str], operands: list[Operand]) -> str:
    return "machine::poll();"


@_entry(r"trap")
def _trap(match: re.Match[str], operands: list[Operand]) -> str:
    return 'emulated_trap("trap");'


@_entry(r"elect\.sync")
def _elect(match: re.Match[str], operands: list[Operand]) -> str:
    lane, predicate = operands[0] if isinstance(operands[0], list) else ["_", operands[0]]
    leader = f"const unsigned int leader = ptx_elect({operands[1]});"
    return f"{leader} {predicate} = leader == emulated_lane(); {_put(lane, 'leader')}"


@_entry(r"(shfl|vote|match|redux|activemask)\S*")
def _collective(match: re.Match[str], operands: list[Operand]) -> str:
    raise Refused(f"{match.group()}: CUDA C++ has a function for it, which the emulator knows")


# ------------------------------------------------------------------------------------ clusters, tensor maps, warpgroups


@_entry(r"mapa(\.shared::cluster)?\.u(32|64)")
def _mapa(match: re.Match[str], operands: list[Operand]) -> str:
    if match.group(1) is None:
        mapped = f"ptx_map(emulated_shared_address((void*){operands[1]}), {operands[2]})"
        return _put(operands[0], f"(unsigned long long)ptx_place(true, {mapped}, 0)")
    return _put(operands[0], f"ptx_map((unsigned int)({operands[1]}), {operands[2]})")


@_entry(r"cvta\.(to\.)?(shared|global)\.u64")
def _cvta(match: re.Match[str], operands: list[Operand]) -> str:
    to, space = match.groups()
    if space == "global":
        return _put(operands[0], str(operands[1]))
    if to:
        return _put(operands[0], f"(unsigned long long)emulated_shared_address((void*){operands[1]})")
    return _put(operands[0], f"(unsigned long long)ptx_place(true, (unsigned int){operands[1]}, 0)")


@_entry(
    r"cp\.async\.bulk\.tensor\.([1-5])d\.shared::(?:cluster|cta)\.global(?:\.tile)?\.mbarrier::complete_tx::bytes"
    r"(\.multicast::cluster)?(?:\.L2::cache_hint)?"
)
def _tensor_load(match: re.Match[str], operands: list[Operand]) -> str:
    target, source, barrier = operands[:3]
    rank = int(match.group(1))
    assert isinstance(source, list)
    if len(source) != rank + 1:
        raise Refused(f"{match.group()} with {len(source) - 1} coordinates")
    blocks = operands[3] if match.group(2) else "0"
    coordinates = ", ".join(f"(int)({c})" for c in source[1:])
    arguments = f"{_inside(target)}, {source[0]}, {rank}, c, {_inside(barrier)}, {blocks}"
    return f"const int c[] = {{{coordinates}}}; ptx_tensor_load({arguments});"


@_entry(r"cp\.async\.bulk\.tensor\.([1-5])d\.global\.shared::cta(?:\.tile)?\.bulk_group(?:\.L2::cache_hint)?")
def _tensor_store(match: re.Match[str], operands: list[Operand]) -> str:
    target, source = operands[:2]
    assert isinstance(target, list)
    if len(target) != int(match.group(1)) + 1:
        raise Refused(f"{match.group()} with {len(target) - 1} coordinates")
    coordinates = ", ".join(f"(int)({c})" for c in target[1:])
    return f"const int c[] = {{{coordinates}}}; ptx_tensor_store({target[0]}, {match.group(1)}, c, {_inside(source)});"


@_entry(r"cp\.async\.bulk\.shared::(?:cluster|cta)\.global\.mbarrier::complete_tx::bytes(?:\.L2::cache_hint)?")
def _bulk_load(match: re.Match[str], operands: list[Operand]) -> str:
    target, source, size, barrier = operands[:4]
    return f"ptx_bulk_load({_inside(target)}, (const void*){_inside(source)}, {size}, {_inside(barrier)});"


@_entry(r"cp\.async\.bulk\.global\.shared::cta\.bulk_group(?:\.L2::cache_hint)?")
def _bulk_store(match: re.Match[str], operands: list[Operand]) -> str:
    return f"ptx_bulk_store((void*){_inside(operands[0])}, {_inside(operands[1])}, {operands[2]});"


@_entry(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(\d+)\.f32\.(f16|bf16|tf32)\.(f16|bf16|tf32)")
def _wgmma(match: re.Match[str], operands: list[Operand]) -> str:
    n, k, kind = int(match.group(1)), int(match.group(2)), match.group(3)
    d, a, b, scale, *signs = operands
    if k != (8 if kind == "tf32" else 16) or not isinstance(d, list) or len(d) != n // 2 or kind != match.group(4):
        raise Refused(f"{match.group()} with {len(d)} results")
    registers = isinstance(a, list)
    flags = [str(s) for s in signs] + ["0"] * (4 - len(signs))
    if registers:
        flags = [*flags[:2], "0", flags[2]]  # the first operand in registers has no transposition
        left = f"const unsigned int a[4] = {{{', '.join(a)}}};"
    else:
        left = f"const unsigned long long a = {a};"
    accumulators = f"float* d[] = {{{', '.join('&' + name for name in d)}}};"
    return (
        f"{left} {accumulators} ptx_wgmma({n}, {_FORMATS[kind]}, d, {'a, 0' if registers else 'nullptr, a'}, {b}, "
        f"{scale}, {', '.join(flags)});"
    )
