"""Inline PTX -> C++: `asm` statements of CUDA C++ text, instruction by instruction, on the operands that they name.

`asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits))` becomes a block with a variable for every operand, of the type that
its constraint says, and one call (`ptx_instructions.py`) for every instruction, of functions of `native/ptx.h`.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field

from emulator.ptx_instructions import Refused, instruction

_ASM = re.compile(r"\b(?:asm|__asm__|__asm)\b\s*(?:(?:volatile|__volatile__)\b\s*)?\(")
_STRING = re.compile(r'"((?:\\.|[^"\\])*)"')
_TYPES = {"h": "unsigned short", "r": "unsigned int", "l": "unsigned long long", "f": "float", "d": "double", "n": "long long"}
_REGISTERS = {"pred": "bool", "f32": "float", "f64": "double"}
_LABEL = re.compile(r"([A-Za-z_$][\w$]*)\s*:(?!:)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "'": "'"}


def translate_asm(text: str) -> str:
    """The text with every asm statement translated."""
    parts, at, number = [], 0, itertools.count()
    while match := _ASM.search(text, at):
        end = _closing(text, match.end() - 1)
        parts += [text[at : match.start()], _statement(text[match.end() : end], next(number))]
        parts.append("\n" * text.count("\n", match.start(), end))
        at = end + 1
    return "".join([*parts, text[at:]])


def _closing(text: str, start: int) -> int:
    """The place of the bracket that closes the one at `start`."""
    depth, at = 0, start
    while at < len(text):
        letter = text[at]
        if letter == '"':
            at = _STRING.match(text, at).end() - 1  # type: ignore[union-attr]
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
            if not depth:
                return at
        at += 1
    raise Refused("an asm statement that does not end")


def _sections(inside: str) -> list[str]:
    """The parts of an asm statement between colons."""
    parts, depth, start, at = [], 0, 0, 0
    while at < len(inside):
        letter = inside[at]
        if letter == '"':
            at = _STRING.match(inside, at).end() - 1  # type: ignore[union-attr]
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == ":" and depth == 0:
            parts.append(inside[start:at])
            start = at + 1
        at += 1
    return [*parts, inside[start:]]


@dataclass
class _Statement:
    number: int
    declared: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)  # name in PTX -> name in C++


def _statement(inside: str, number: int) -> str:
    sections = _sections(inside)
    ptx = "".join(re.sub(r"\\(.)", lambda m: _ESCAPES.get(m.group(1), m.group(1)), s) for s in _STRING.findall(sections[0]))
    statement = _Statement(number)
    operands = [_operands(part) for part in sections[1:3]]
    for index, (constraint, expression) in enumerate(itertools.chain(*operands)):
        kind = constraint[-1]
        if kind not in _TYPES:
            raise Refused(f"the constraint {constraint!r} of an asm statement")
        name = f"o{index}"
        statement.declared.append(f"{_TYPES[kind]} {name};")
        if constraint[0] != "=":
            statement.before.append(f"{name} = ({_TYPES[kind]})({expression});")
        if constraint[0] in "=+":
            statement.after.append(f"ptx_give({expression}, {name});")
        statement.registers[f"%{index}"] = name
    _translate(ptx, statement, len(statement.registers))
    lines = [*statement.declared, *statement.before, *statement.body, *statement.after]
    return "do { " + " ".join(lines) + " } while (0)"


def _operands(section: str) -> list[tuple[str, str]]:
    """(constraint, expression) of `"=r"(a), "f"(b)`."""
    found, at = [], 0
    while match := re.compile(r'\s*,?\s*(?:\[\w+\]\s*)?"([^"]*)"\s*\(').match(section, at):
        end = _closing(section, match.end() - 1)
        found.append((match.group(1), section[match.end() : end].strip()))
        at = end + 1
    return found


def _translate(ptx: str, statement: _Statement, operands: int) -> None:
    # Without operands `%` stands for itself, with some `%%` does.
    text = re.sub(r"//[^\n]*", " ", ptx)
    text = re.sub(r"%%", "%", text)
    at = 0
    while True:
        while at < len(text) and text[at] in " \n\t\r{};":
            at += 1
        if at >= len(text):
            return
        if label := _LABEL.match(text, at):
            statement.body.append(f"ptx_{statement.number}_{_plain(label.group(1))}:;")
            at = label.end()
            continue
        end = text.find(";", at)
        if end < 0:
            raise Refused(f"PTX that does not end with a semicolon: {text[at:].strip()!r}")
        _one(" ".join(text[at:end].split()), statement)
        at = end + 1


def _plain(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _one(line: str, statement: _Statement) -> None:
    """One instruction or declaration."""
    if line.startswith(".reg"):
        kind, names = re.match(r"\.reg\s+\.(\w+)\s+(.*)", line).groups()  # type: ignore[union-attr]
        size = {"pred": 1}.get(kind) or (32 if kind.endswith("x2") else int(re.sub(r"\D", "", kind.replace("bf", "f"))))
        c_type = _REGISTERS.get(kind) or {16: "unsigned short", 32: "unsigned int", 64: "unsigned long long"}[size]
        for name in names.split(","):
            several = re.match(r"\s*(%?\w+)\s*(?:<(\d+)>)?\s*$", name)
            assert several is not None, line
            stem, count = several.groups()
            for given in [stem] if count is None else [f"{stem}{i}" for i in range(int(count))]:
                statement.registers[given] = f"t_{_plain(given)}"
                statement.declared.append(f"{c_type} t_{_plain(given)};")
        return
    condition = ""
    if match := re.match(r"@(!?)(%?\w+)\s+(.*)", line):
        condition = f"if ({match.group(1)}{statement.registers[match.group(2)]}) "
        line = match.group(3)
    opcode, _, rest = line.partition(" ")
    if opcode in ("bra", "bra.uni"):
        statement.body.append(f"{condition}goto ptx_{statement.number}_{_plain(rest.strip())};")
        return
    written = instruction(opcode, rest, statement.registers)
    statement.body.append(f"{condition}{{ {written} }}")
