"""The struct of extents and strides that a kernel takes by value, as text and as words, written once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorsmith.targets.cuda.kernel import Constant


def sizes_struct(values: Mapping[str, int | float | Sequence[int]], name: str = "Sizes") -> tuple[str, Constant]:
    """The declaration of a struct whose members are long long (double for a float, arrays for sequences), and its words.

    >>> sizes_struct({"points": 6, "extents": (2, 3)})
    ('struct Sizes { long long points, extents[2]; };', Constant(words=(6, 2, 3)))
    """
    members: dict[str, list[str]] = {}
    order: list[str] = []
    words: list[int | float] = []
    for member, value in values.items():
        kind = "double" if isinstance(value, float) else "long long"
        if not order or order[-1] != kind:
            order.append(kind)
            members[f"{kind} {len(order)}"] = []
        if isinstance(value, (int, float)):
            text = member
            words.append(value)
        else:
            text = f"{member}[{len(value)}]"
            words += value
        members[f"{kind} {len(order)}"].append(text)
    lines = [f"{key.rsplit(' ', 1)[0]} {', '.join(names)};" for key, names in members.items()]
    return f"struct {name} {{ {' '.join(lines)} }};", Constant(tuple(words))
