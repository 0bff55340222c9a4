"""`tensorsmith doctor`, --help and the grammar of the command line."""

from __future__ import annotations

import subprocess
import sys

import pytest
from commands import environment, run

from tensorsmith.cli import main


def test_doctor_finds_this_installation_in_order(tmp_path):
    done = run(["doctor"], tmp_path / "cache", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    verdicts = {line.split()[0] for line in lines if line and not line.startswith("everything")}
    assert verdicts <= {"OK", "NOTE"}
    for subject in ("instructions", "threads", "launch", "kernel cache", "memory", "self-test", "cuda"):
        assert any(subject in line for line in lines), subject
    assert str(tmp_path / "cache") in done.stdout
    assert lines[-1] == "everything required works"


def test_doctor_fails_where_a_requirement_does(tmp_path):
    wrong = environment(tmp_path / "cache") | {"TENSORSMITH_ISA": "pentium"}
    done = subprocess.run(
        [sys.executable, "-m", "tensorsmith", "doctor"], env=wrong, cwd=tmp_path, text=True, capture_output=True
    )
    assert done.returncode == 1
    assert "FAIL  instructions" in done.stdout and "pentium" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_doctor_notes_portable_paths(tmp_path):
    portable = environment(tmp_path) | {"TENSORSMITH_LAUNCH": "portable", "TENSORSMITH_CACHE": "off"}
    done = subprocess.run(
        [sys.executable, "-m", "tensorsmith", "doctor"], env=portable, cwd=tmp_path, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "NOTE  launch" in done.stdout and "NOTE  kernel cache" in done.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], ["train", "--help"], ["explain", "--help"]])
def test_help_is_success(arguments, capsys):
    assert main(arguments) == 0
    assert "usage: tensorsmith" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["train"], ["train", "--data", "digits", "--epochs", "x"]])
def test_a_wrong_command_line_is_code_2(arguments, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert "usage: tensorsmith" in captured.out + captured.err


def test_help_imports_neither_rich_nor_llvm():
    program = (
        "import sys; from tensorsmith.cli import main; main(['--help']); "
        "print(sorted({'rich', 'llvmlite', 'safetensors', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True)
    assert done.stdout.splitlines()[-1] == "[]"
