"""CUDA C++ text -> C++ text that g++ compiles against `native/device.h`: one row of a table for every kernel.

Rewritten are `__shared__` variables (references into the block's shared memory), `extern __shared__` arrays and inline
PTX (`ptx.py`). Lines keep their numbers, so that messages name those of the kernel's text.
"""

from __future__ import annotations

import re

from emulator.ptx import translate_asm
from emulator.ptx_instructions import Refused

_KERNEL = re.compile(r"__global__\s+(?:void\s+)?((?:__\w+__\s*\([^()]*\)\s*|void\s+)*)(\w+)\s*\(")
_BOUNDS = re.compile(r"__launch_bounds__\s*\(([^(),]*)")
_DYNAMIC = re.compile(r"extern\s+__shared__\s+((?:__align__\s*\(\w+\)|alignas\s*\(\w+\))\s+)?([^;\[\]]*?)(\w+)\s*\[\s*\]\s*;")
_STATIC = re.compile(r"__shared__\s+([^;]*);")
_ALIGNMENT = re.compile(r"(?:__align__|alignas)\s*\(\s*(\w+)\s*\)\s*")
_EMPTY_LINE = re.compile(r"[^\n]")


def translate(source: str) -> str:
    """The whole C++ text of a module."""
    text = without_comments(source)
    names = [(match.group(2), match.group(1)) for match in _KERNEL.finditer(text)]
    if not names:
        raise Refused('no kernel (extern "C" __global__ void NAME(...)) in the text')
    text = _DYNAMIC.sub(_dynamic_array, text)
    text = _STATIC.sub(_static_variable, text)
    plain = text
    text = translate_asm(text)
    ptx = '#include "ptx.h"\n' if text != plain else ""
    rows = []
    for name, attributes in names:
        bounds = _BOUNDS.search(attributes)
        threads = f"(unsigned int)({bounds.group(1)})" if bounds else "0"
        kernel = f"cuda_text::{name}"
        known = f"cuda_text::emulated_parameters({kernel})"
        call = f"[](void** a) {{ {known}.call({kernel}, a); }}"
        rows.append(f'    {{"{name}", {call}, decltype({known})::count, decltype({known})::sizes, {threads}}},\n')
    table = "".join(rows)
    export = '__attribute__((visibility("default")))'
    return (
        f'#include "device.h"\n{ptx}namespace cuda_text {{\n#line 1 "kernel.cu"\n{text}\n}}  // namespace cuda_text\n'
        f"using namespace cuda_text;\n"
        f'extern "C" {export} const EmulatedKernel emulated_kernels[] = {{\n{table}    {{nullptr, nullptr, 0, nullptr, 0}}}};\n'
        f'extern "C" {export} unsigned int* const emulated_module_bytes = &cuda_text::emulated_static_bytes;\n'
    )


def without_comments(text: str) -> str:
    """The text with comments as spaces; strings stay."""
    pattern = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.DOTALL)
    return pattern.sub(lambda m: m.group() if m.group()[0] in "\"'" else _EMPTY_LINE.sub(" ", m.group()), text)


def _dynamic_array(match: re.Match[str]) -> str:
    before, kind, name = match.groups()
    declared = _ALIGNMENT.search((before or "") + kind)
    kind = _ALIGNMENT.sub("", kind).strip()
    alignment = declared.group(1) if declared else f"alignof({kind})"
    return f"{kind}* const {name} = ({kind}*)emulated_dynamic_shared({alignment});"


def _static_variable(match: re.Match[str]) -> str:
    """`__shared__ float a[4][5], b;`: each a reference to a place that is chosen when it is first reached."""
    declaration = match.group(1)
    newlines = "\n" * declaration.count("\n")
    declared = _ALIGNMENT.search(declaration)
    parts = _split(_ALIGNMENT.sub("", declaration).replace("\n", " "))
    first = re.match(r"(.*?[\s>*&])(\w+)\s*((?:\[.*\])?)\s*$", parts[0])
    if first is None:
        raise Refused(f"__shared__ {declaration}: not a declaration that the emulator reads")
    kind = first.group(1).strip()
    written = []
    for part in (f"{first.group(2)}{first.group(3)}", *parts[1:]):
        name, dims = re.match(r"\s*(\w+)\s*((?:\[.*\])?)\s*$", part).groups()  # type: ignore[union-attr]
        kept, own = f"{name}_shared", f"alignof({name}_shared)"
        alignment = f"({own} > {declared.group(1)} ? {own} : {declared.group(1)})" if declared else own
        place = f"emulated_place_shared(&emulated_static_bytes, &{name}_place, sizeof({kept}), {alignment})"
        written.append(
            f"typedef {kind} {kept}{dims}; static unsigned int {name}_place; {kept}& {name} = *({kept}*){place};"
        )
    return " ".join(written) + newlines


def _split(text: str) -> list[str]:
    """By commas outside brackets."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "(<[{") - (letter in ")>]}")
        if letter == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]
