"""The text builder: instructions of independent parts in turns."""

from __future__ import annotations

from tensorsmith.targets.cpu.build import Function


def _chain(f: Function, start: str) -> str:
    return f.value(f"mul i64 {f.value(f'mul i64 {start}, 3')}, 5")


def test_parts_without_blocks_are_written_in_turns():
    f = Function("two", [("i64", "a"), ("i64", "b")])
    assert f.side_by_side([lambda: _chain(f, "%a"), lambda: _chain(f, "%b")]) == ["%t2", "%t4"]
    assert f.text().splitlines()[2:6] == [
        "  %t1 = mul i64 %a, 3", "  %t3 = mul i64 %b, 3", "  %t2 = mul i64 %t1, 5", "  %t4 = mul i64 %t3, 5",
    ]  # fmt: skip


def test_parts_with_blocks_stay_one_after_another():
    f = Function("two", [("i1", "c"), ("ptr", "p")])

    def guarded() -> None:
        with f.if_("%c"):
            f.store(1, "i64", "%p")

    f.side_by_side([guarded, guarded])
    lines = [line.strip() for line in f.text().splitlines()[2:-2]]
    assert lines.index("br label %join2") < lines.index("br i1 %c, label %yes3, label %join4")
    assert f.block == "join4"
