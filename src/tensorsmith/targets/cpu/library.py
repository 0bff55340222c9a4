"""Functions of the C library applied lane by lane: the route for what has no vector code yet."""

from __future__ import annotations

from collections.abc import Sequence

from tensorsmith.targets.cpu.vector import Lanes


def library_call(lanes: Lanes, element: str, name: str, arguments: Sequence[str]) -> str:
    """`double name(double, ...)` of the C library in every lane; float32 arguments go through float64.

    The loop over the lanes is one internal function per name and lane count, so that a kernel holds it once.
    """
    f = lanes.function
    wide = [lanes.convert("fpext", "float", "double", a) if element == "float" else a for a in arguments]
    vector = lanes.type("double")
    symbol = f"each_{name}_{lanes.count}"
    f.declarations.add(_each(symbol, name, lanes.count, len(wide)))
    result = f.value(f"call {vector} @{symbol}({', '.join(f'{vector} {a}' for a in wide)})")
    return lanes.convert("fptrunc", "double", "float", result) if element == "float" else result


def _each(symbol: str, name: str, count: int, arity: int) -> str:
    vector = f"<{count} x double>"
    letters = [f"%a{k}" for k in range(arity)]
    extracted = "\n".join(f"  %x{k} = extractelement {vector} {a}, i64 %i" for k, a in enumerate(letters))
    passed = ", ".join(f"double %x{k}" for k in range(arity))
    return f"""\
declare double @{name}({", ".join(["double"] * arity)})
define internal {vector} @{symbol}({", ".join(f"{vector} {a}" for a in letters)}) noinline {{
entry:
  br label %lane
lane:
  %i = phi i64 [0, %entry], [%next, %lane]
  %sofar = phi {vector} [zeroinitializer, %entry], [%with, %lane]
{extracted}
  %y = call double @{name}({passed})
  %with = insertelement {vector} %sofar, double %y, i64 %i
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, {count}
  br i1 %more, label %lane, label %done
done:
  ret {vector} %with
}}"""
