"""The comparison of conformance counts: a count that falls fails, one that rises can be kept."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("conformance.py")

# Stands for the tool that measures: writes what passes now, for the groups asked for.
TOOL = """
import json, sys
records = json.loads(open(sys.path[0] + "/now.json").read())
groups = [value for flag, value in zip(sys.argv, sys.argv[1:]) if flag == "--group"]
assert sys.argv[1] == "tensorsmith"
target = sys.argv[sys.argv.index("--json") + 1]
open(target, "w").write(json.dumps({"ops": [r for r in records if r["group"] in groups]}))
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "tool.py").write_text(TOOL)
    counts = tmp_path / "counts.json"
    counts.write_text(json.dumps({"unary": {"fwd_pass": 5, "grad_pass": 3}}))

    def run(now, *arguments):
        records = [{"group": group, "fwd_pass": forward, "grad_pass": grad} for group, forward, grad in now]
        (tmp_path / "now.json").write_text(json.dumps(records))
        command = [sys.executable, SCRIPT, tmp_path / "tool.py", "--counts", counts, *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr, json.loads(counts.read_text())

    return run


def test_equal_counts_pass(run):
    assert run([("unary", 4, 1), ("unary", 1, 2), ("other", 0, 0)])[::2] == (
        0, {"unary": {"fwd_pass": 5, "grad_pass": 3}}
    )  # fmt: skip


@pytest.mark.parametrize("now", [("unary", 4, 3), ("unary", 9, 2), ("other", 9, 9)], ids=str)
def test_a_fallen_count_fails_and_is_never_kept(run, now):
    code, output, kept = run([now], "--keep")
    assert code == 1 and "FELL  unary" in output
    assert kept == {"unary": {"fwd_pass": 5, "grad_pass": 3}}


def test_a_risen_count_is_shown_and_kept_when_asked(run):
    code, output, kept = run([("unary", 6, 3)])
    assert code == 0 and "rose  unary: fwd_pass 5 -> 6" in output and kept["unary"]["fwd_pass"] == 5
    assert run([("unary", 6, 3)], "--keep")[2]["unary"] == {"fwd_pass": 6, "grad_pass": 3}


def test_a_group_is_added_by_name(run):
    assert run([("unary", 1, 1), ("loss", 2, 1)], "--keep", "--group", "loss")[2] == {
        "loss": {"fwd_pass": 2, "grad_pass": 1},
        "unary": {"fwd_pass": 5, "grad_pass": 3},
    }
