"""The course of docs/course: its exercises can be solved, their checks find faults, its page of differences is the tests'."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

COURSE = Path(__file__).parents[2] / "docs" / "course"
DIFFERENCES = Path(__file__).parent / "test_differences.py"

# The chapter, what stands in the exercise, what the solution puts there, what a wrong one does, and what that one is told.
# In the last, LINE is the line at which the reader's function begins.
EXERCISES = [
    pytest.param(
        "1-scalars",
        """        return math.tanh(x)

    @staticmethod
    def backward(ctx, d_output):
        raise NotImplementedError("Tanh.backward")
""",
        """        ctx.save_for_backward(math.tanh(x))
        return math.tanh(x)

    @staticmethod
    def backward(ctx, d_output):
        (out,) = ctx.saved_values
        return d_output * {}
""",
        "(1.0 - out * out)",
        "(1.0 - out)",
        r"Tanh.backward \(LINE\): at \[-2.0\], input 0: it returned 1.96\d* for d_output = 1, .* is 0.07",
        ("def backward", -1),
        id="1-scalars",
    ),
    pytest.param(
        "2-tensors",
        """        raise NotImplementedError("Outer.forward")

    @staticmethod
    def backward(ctx, grad_output):
        raise NotImplementedError("Outer.backward")
""",
        """        ctx.save_for_backward(a, b)
        return a.view(a.size, 1) * b.view(1, b.size)

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_values
        n, m = a.size, b.size
        return {}, (grad_output * a.view(n, 1)).sum(0).view(m)
""",
        "(grad_output * b.view(1, m)).sum(1).view(n)",
        "grad_output * b.view(1, m)",
        r"Outer.backward: the gradient of an input of shape \(3,\) must be .* got shape \(3, 2\) \(LINE\)",
        ("def backward", -1),
        id="2-tensors",
    ),
    pytest.param(
        "3-map-zip-reduce",
        """    raise NotImplementedError("huber")


def huber_back(x, d):
    raise NotImplementedError("huber_back")
""",
        """    return 0.5 * x * x if -1.0 < x < 1.0 else max(x, -x) - 0.5


def huber_back(x, d):
    return d * {}
""",
        "min(max(x, -1.0), 1.0)",
        "x",
        r"Huber.backward \(LINE\): input 0 .* it returned -3.0\d* for a gradient of ones, .* is -1.0",
        ("def backward", -1),
        id="3-map-zip-reduce",
    ),
    pytest.param(
        "4-kernels",
        """    pieces = {-1: 0.0, 0: x * x * (3.0 - 2.0 * x), 1: 1.0}
    return pieces[max(-1, min(1, int(x // 1)))]
""",
        """    x = min(max(x, 0.0), 1.0)
    return x * x * ({} - 2.0 * x)
""",
        "3.0",
        "2.0",
        r"smooth_step\(0.25\) gave 0.09375, not 0.15625 \(LINE\)",
        ("def smooth_step", 0),
        id="4-kernels",
    ),
    pytest.param(
        "5-convolution",
        """        raise NotImplementedError("Blur.backward")
""",
        """        return convolve(grad_output, WEIGHT.permute(1, 0, 2), {})
""",
        "True",
        "False",
        r"Blur.backward \(LINE\): input 0 of shape \(2, 2, 3\), .* it returned .* for a gradient of",
        ("def backward", -1),
        id="5-convolution",
    ),
    pytest.param(
        "6-training",
        """        return minitorch.logsoftmax(x, 1)

    @staticmethod
    def backward(ctx, grad_output):
        raise NotImplementedError("LogSoftmax.backward")
""",
        """        out = minitorch.logsoftmax(x, 1)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, grad_output):
        (out,) = ctx.saved_values
        return grad_output - out.exp() * {}
""",
        "grad_output.sum(1)",
        "grad_output",
        r"LogSoftmax.backward \(LINE\): input 0 of shape",
        ("def backward", -1),
        id="6-training",
    ),
]


def block(chapter: str, kind: str) -> str:
    """The one block of a chapter that is marked `exercise` or `check`."""
    text = (COURSE / f"{chapter}.md").read_text(encoding="utf-8")
    (found,) = re.findall(rf"^```python {kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return found


def run(program: str, file: Path) -> None:
    """Run a program as its file would be."""
    file.write_text(program)
    exec(compile(program, str(file), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("chapter, gap, filled, right, wrong, told, at", EXERCISES)
def test_an_exercise_is_solved_by_its_solution_only(chapter, gap, filled, right, wrong, told, at, tmp_path, capsys):
    exercise, check = block(chapter, "exercise"), block(chapter, "check")
    assert gap in exercise
    file = tmp_path / "exercise.py"
    run(exercise.replace(gap, filled.replace("{}", right)) + check, file)
    assert capsys.readouterr().out.endswith("right\n")

    program = exercise.replace(gap, filled.replace("{}", wrong)) + check
    with pytest.raises((AssertionError, RuntimeError)) as caught:
        run(program, file)
    text, move = at
    (line,) = [i for i, source in enumerate(program.split("\n"), 1) if text in source]
    assert re.search(told.replace("LINE", re.escape(f"{file}:{line + move}")), str(caught.value)), str(caught.value)


@pytest.mark.parametrize("chapter", [case.values[0] for case in EXERCISES])
def test_an_exercise_as_it_stands_says_what_to_do(chapter, tmp_path):
    with pytest.raises(Exception) as caught:
        run(block(chapter, "exercise") + block(chapter, "check"), tmp_path / "exercise.py")
    if chapter == "4-kernels":  # the fault to be found is in the line of `pieces`
        assert "exercise.py:6: " in str(caught.value) and "not possible on a traced value" in str(caught.value)
    else:
        assert "NotImplementedError" in f"{type(caught.value)} {caught.value}"  # or the lifting's error, which names it


def test_an_exercise_is_a_program(tmp_path):
    _, gap, filled, right, *_ = EXERCISES[0].values
    exercise = block("1-scalars", "exercise")
    (tmp_path / "exercise.py").write_text(exercise.replace(gap, filled.replace("{}", right)) + block("1-scalars", "check"))
    done = subprocess.run([sys.executable, "exercise.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout == "right\n", done.stderr


def test_every_chapter_ends_with_places_in_the_source_and_an_exercise():
    chapters = sorted(page.stem for page in COURSE.glob("[0-9]*.md"))
    assert chapters == [case.values[0] for case in EXERCISES]
    for chapter in chapters:
        text = (COURSE / f"{chapter}.md").read_text(encoding="utf-8")
        assert len(text.split("\n")) <= 300
        places = text.split("## Read next\n")[1].split("## Exercise\n")[0]
        named = 0
        for path, names in re.findall(r"\]\(([^)]+\.py)\):([^\[\n]*)", places):
            source = (COURSE / path).read_text(encoding="utf-8")
            # The names before a semicolon or a relative clause are in the file that is linked.
            for name in re.findall(r"`(\w+)`", re.split(r"[;(]|which|whose| is ", names)[0]):
                assert re.search(rf"\b(def|class) {name}\b|^{name}\b.*=", source, re.MULTILINE), f"{chapter}: {path}: {name}"
                named += 1
        assert named >= 3, chapter


def sections(text: str, heading: str, names: str) -> dict[str, list[str]]:
    """The names under each heading of a text."""
    found: dict[str, list[str]] = {}
    for match in re.finditer(rf"{heading}|{names}", text, re.MULTILINE):
        title, name = match.groups()
        if title is not None:
            found[title] = []
        elif found:
            found[list(found)[-1]].append(re.sub(r"\W+", "_", name.lower()).strip("_"))
    return {title: listed for title, listed in found.items() if listed}


def test_the_page_of_differences_and_their_tests_are_in_step():
    tests = sections(DIFFERENCES.read_text(encoding="utf-8"), r"^# -+ (.+)$", r"^def test_(\w+)\(")
    page = sections((COURSE / "differences.md").read_text(encoding="utf-8"), r"^## (.+)$", r"^\*\*(.+?)\.\*\*")
    assert tests["habits, kept"] == page["Habits that are kept"]
    assert tests["faults, not copied"] == page["Faults that are not copied"]
