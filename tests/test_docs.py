"""Every Python block of README.md, docs/*.md and docs/course/*.md runs, and its outputs are what is printed there.

The blocks of one file share a namespace, in order. A block with `>>>` is checked as a doctest (`...` stands for
anything); another is executed, and says what it claims with `assert`. The exercises of the course, blocks marked
`exercise` and `check`, are run by minitorch/test_course.py.
"""

from __future__ import annotations

import doctest
import linecache
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "course").glob("*.md"))]
GUIDES = ("autograd.md", "compile.md", "func.md", "kernels.md", "numerics.md", "scalars-guide.md", "tensors.md")
CHAPTERS = ("1-scalars", "2-tensors", "3-map-zip-reduce", "4-kernels", "5-convolution", "6-training")
FENCE = re.compile(r"^```python *\n(.*?)^``` *$", re.MULTILINE | re.DOTALL)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(text: str) -> Iterator[tuple[int, str]]:
    """The Python blocks of a page with the line each starts on."""
    for found in FENCE.finditer(text):
        yield text.count("\n", 0, found.start(1)) + 1, found.group(1)


def run_block(source: str, line: int, page: str, namespace: dict[str, Any]) -> None:
    """Run one block; AssertionError where a doctest's output differs."""
    name = f"{page}:{line}"
    if not source.lstrip().startswith(">>>"):
        # Known to linecache, so that messages which show the user's line find it.
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        exec(compile(source, name, "exec"), namespace)
        return
    test = doctest.DocTestParser().get_doctest(source, namespace, name, page, line - 1)
    test.globs = namespace  # the parser copies it, and later blocks use what this one defines
    report: list[str] = []
    results = doctest.DocTestRunner(optionflags=FLAGS, verbose=False).run(test, out=report.append, clear_globs=False)
    assert not results.failed, "".join(report)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "docs"}
    for line, source in blocks(page.read_text(encoding="utf-8")):
        run_block(source, line, page.name, namespace)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_pages_exist(page: Path):
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", prose):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_guides_have_blocks():
    for name in (*GUIDES, *(f"course/{chapter}.md" for chapter in CHAPTERS)):
        assert len(list(blocks((ROOT / "docs" / name).read_text(encoding="utf-8")))) >= 5, name


# ---------------------------------------------------------------------------------- the checks themselves can fail


@pytest.mark.parametrize("source", [">>> 1 + 1\n3\n", "assert 1 + 1 == 3\n", ">>> 1 / 0\n0\n"])
def test_a_wrong_block_fails(source: str):
    with pytest.raises(AssertionError):
        run_block(source, 1, "page.md", {})


def test_blocks_are_found_and_share_a_namespace():
    text = "# A\n\n```python\na = 2\n```\n\ntext\n\n```sh\nls\n```\n```python\n>>> a + 1\n3\n>>> b = a\n```\n"
    text += "```python\nassert b == 2\n```\n"
    found = list(blocks(text))
    assert [line for line, _ in found] == [4, 13, 18]
    namespace: dict[str, Any] = {}
    for line, source in found:
        run_block(source, line, "page.md", namespace)
