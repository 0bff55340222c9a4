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
        high, low = (f"ptx_narrow_{kind}({shaped(_as('f32', o))}, {'true' if rounding == 'rz' else 'false'})" for o in operands[1:])
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
