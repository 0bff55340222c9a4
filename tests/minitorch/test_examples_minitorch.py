"""The programs of `examples/minitorch/` learn what they are for, and say what is wrong with their arguments."""

from __future__ import annotations

import gzip
import importlib
import os
import re
import runpy
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "minitorch"
EPOCH = re.compile(r"epoch +(\d+)  loss +([\d.]+)  accuracy +([\d.]+)%  +[\d.]+ s")


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Of the programs: where bytecode is not to lie beside the source, it is kept elsewhere from one to the next."""
    kept = {**os.environ, "COLUMNS": "200"}
    if kept.pop("PYTHONDONTWRITEBYTECODE", None):
        kept["PYTHONPYCACHEPREFIX"] = str(tmp_path_factory.mktemp("bytecode"))
    return kept


def run(environment, name, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "tensorsmith.minitorch", str(EXAMPLES / name), *map(str, arguments)],
        env=environment, text=True, capture_output=True, timeout=120,
    )  # fmt: skip


def learnt(environment, name, *arguments):
    """(loss, accuracy) of the epochs that the program printed; its last line is the accuracy of the last."""
    done = run(environment, name, *arguments)
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    epochs = [(float(found[2]), float(found[3]) / 100) for found in map(EPOCH.fullmatch, lines) if found]
    assert len(epochs) >= 2 and float(last.removeprefix("accuracy ")) == pytest.approx(epochs[-1][1], abs=2e-3)
    return epochs


@pytest.mark.parametrize(
    "name, arguments, accuracy",
    [
        ("manual.py", ("--weights", 0, 0, "--bias", 0, "--epochs", 20), 0.85),
        ("scalar.py", ("--points", 30, "--epochs", 15), 0.8),
        ("tensor.py", ("--points", 30, "--rate", 0.3, "--epochs", 60), 0.85),
        ("fast_tensor.py", ("--dataset", "Diag", "--hidden", 20, "--epochs", 60), 0.9),
        ("sentences.py", ("--epochs", 15, "--seed", 1), 0.75),
        ("digits.py", ("--epochs", 3, "--images", 450, "--batch", 10), 0.6),
    ],
)
def test_a_program_learns(environment, name, arguments, accuracy):
    epochs = learnt(environment, name, *arguments)
    assert epochs[-1][0] < 0.7 * epochs[0][0] and epochs[-1][1] >= accuracy


def test_no_program_is_left_out():
    programs = {path.name for path in EXAMPLES.glob("*.py") if "__main__" in path.read_text(encoding="utf-8")}
    learning = {"manual.py", "scalar.py", "tensor.py", "fast_tensor.py", "sentences.py", "digits.py"}
    assert programs == learning | {"make_sentences.py"}


def test_the_sentences_are_what_their_script_writes():
    lines = runpy.run_path(str(EXAMPLES / "make_sentences.py"))["sentences"]()
    assert (EXAMPLES / "sentences.txt").read_text(encoding="utf-8").splitlines() == lines


def main_of(name, monkeypatch, *arguments):
    """A program in this process; its neighbours and the alias are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    importlib.import_module("tensorsmith.minitorch.alias").install()
    try:
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    finally:
        for module in set(sys.modules) - before:
            if module.split(".")[0] in ("minitorch", "numba", "points", "training"):
                del sys.modules[module]


def test_a_second_run_with_the_same_seed_prints_the_same(monkeypatch, capsys):
    printed = []
    for seed in (7, 7, 8):
        main_of("tensor.py", monkeypatch, "--points", 20, "--epochs", 2, "--seed", seed)
        printed.append([line[: line.rindex("%")] for line in capsys.readouterr().out.splitlines()[:2]])
    assert printed[0] == printed[1] != printed[2]


@pytest.mark.parametrize(
    "name, arguments, message",
    [
        ("scalar.py", ("--epochs", 0), "argument --epochs: must be a whole number above 0, got '0'"),
        ("tensor.py", ("--dataset", "Moons"), "invalid choice: 'Moons'"),
        ("fast_tensor.py", ("--rate", "nan"), "argument --rate: must be a number above 0, got 'nan'"),
        ("fast_tensor.py", ("--dataset", "Spiral", "--points", 1), "--points 1: Spiral needs at least 2"),
        ("sentences.py", ("--text", "{folder}/none.txt"), "No such file or directory"),
        ("sentences.py", ("--text", "{folder}/bad.txt"), "bad.txt, line 2: needs a label, a tab and a sentence, got 'no tab'"),
        ("sentences.py", ("--text", "{folder}/one.txt"), "one.txt: needs two labels, found 1 (good)"),
        ("sentences.py", ("--vectors", "{folder}/uneven.txt"), "line 2: 'b' has 2 numbers, the first word 1"),
        ("sentences.py", ("--vectors", "{folder}/words.txt"), "line 1: 'the' has a value that is no number: 'x'"),
        ("sentences.py", ("--vectors", "{folder}/foreign.txt"), "none of the 55 words of the text has a vector there"),
        ("digits.py", ("--data", "{folder}"), "no images file in"),
    ],
)
def test_wrong_arguments_are_named(name, arguments, message, tmp_path, monkeypatch, capsys):
    for file, text in {
        "bad.txt": "good\tfine words\nno tab\n", "one.txt": "good\ta b\ngood\tc\n", "uneven.txt": "the 1\nb 1 2\n",
        "words.txt": "the 1 x\n", "foreign.txt": "zzz 1 2\n",
    }.items():  # fmt: skip
        (tmp_path / file).write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit) as stopped:
        main_of(name, monkeypatch, *(str(a).format(folder=tmp_path) for a in arguments))
    assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_word_vectors_and_idx_files_by_path(tmp_path, monkeypatch, capsys):
    text = "".join(f"{'yes' if i % 2 else 'no'}\tit is {'good' if i % 2 else 'bad'} w{i}\n" for i in range(20))
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    (tmp_path / "vectors.txt").write_text("good 1.0 0.5\nbad -1.0 0.5\nit 0.0 0.1\n", encoding="utf-8")
    given = ("--text", tmp_path / "text.txt", "--vectors", tmp_path / "vectors.txt", "--features", 8, "--rate", 0.5)
    main_of("sentences.py", monkeypatch, *given, "--epochs", 6)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "20 sentences, labels no and yes; 3 of 24 words have a vector" and printed[-1] == "accuracy 1.000"

    # Two classes of 12x12 pixels: the left half is bright or the right one.
    labels = np.arange(40, dtype=np.uint8) % 2
    images = np.zeros((40, 12, 12), np.uint8)
    for image, label in zip(images, labels):
        image[:, 6 * label : 6 * label + 6] = 200
    for part, chosen in (("train", slice(0, 30)), ("t10k", slice(30, 40))):
        for kind, array in (("images-idx3", images[chosen]), ("labels-idx1", labels[chosen])):
            header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            (tmp_path / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(header + array.tobytes()))
    main_of("digits.py", monkeypatch, "--data", tmp_path, "--epochs", 3)
    assert capsys.readouterr().out.splitlines()[-1] == "accuracy 1.000"
