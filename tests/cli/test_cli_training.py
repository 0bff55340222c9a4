"""`tensorsmith demo` and `tensorsmith train` as a user runs them."""

from __future__ import annotations

import gzip
import re
import signal
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from commands import command, environment, run

import tensorsmith as ts
from tensorsmith.cli import main
from tensorsmith.cli.interrupt import Interrupts
from tensorsmith.data import Digits
from tensorsmith.models import MLP


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(scope="module")
def demo(cache, tmp_path_factory):
    """The demo from an empty kernel cache: the folder it ran in, and what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    return folder, run(["demo"], cache, folder)


def test_demo_reaches_its_accuracy_and_shows_what_it_did(demo):
    folder, done = demo
    assert done.returncode == 0, done.stdout + done.stderr
    accuracy = float(re.search(r"test accuracy (0\.\d+) ", done.stdout)[1])
    assert accuracy >= 0.97
    assert re.search(r"reloaded into a fresh model: test accuracy [\d.]+%, the same", done.stdout)
    assert "confusion: true class (row)" in done.stdout
    table = done.stdout[done.stdout.index("what the kernels did") :]
    for kernel in ("linear", "linear_backward", "relu", "cross_entropy", "adam_step"):
        assert kernel in table
    assert "GB/s" in table and "GFLOP/s" in table
    assert [path.name for path in folder.iterdir()] == ["tensorsmith-demo.safetensors"]


def test_demo_checkpoint_holds_the_model_it_announced(demo):
    folder, done = demo
    state = ts.load(folder / "tensorsmith-demo.safetensors")
    settings = state["settings"]
    model = MLP(settings["features"], settings["hidden"], settings["classes"], 0.3, 0.1)
    model.load_state_dict(state["model"])
    model.eval()
    test = Digits(train=False)
    with ts.no_grad():
        accuracy = (model(test.images).argmax(1) == test.labels).float().mean().item()
    assert accuracy == pytest.approx(state["accuracy"], abs=1e-6)
    assert f"test accuracy {state['accuracy']:.4f}" in done.stdout


def test_an_interrupt_leaves_the_old_file_and_one_line(demo, cache, tmp_path):
    old = tmp_path / "old.safetensors"
    old.write_bytes(b"what was here before")
    arguments = command("demo", "--epochs", "100000", "--output", str(old))
    process = subprocess.Popen(
        arguments, cwd=tmp_path, env=environment(cache), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("digits:")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "tensorsmith demo: interrupted; no file was left half written\n"
    assert [path.name for path in tmp_path.iterdir()] == ["old.safetensors"]
    assert old.read_bytes() == b"what was here before"


def test_interrupts_are_kept_for_the_next_safe_place():
    reached = []
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
        reached.append("after the signal")
        interrupts.check()
        reached.append("after the check")
    assert reached == ["after the signal"]
    with pytest.raises(KeyboardInterrupt), Interrupts():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)  # the second one does not wait
        reached.append("after the second")
    assert reached == ["after the signal"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def write_idx(path: Path, array: np.ndarray) -> None:
    """An IDX file of bytes."""
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wb") as file:
        file.write(header + array.astype(np.uint8).tobytes())


@pytest.fixture
def images(tmp_path) -> Path:
    """A folder of easy images: the class is the row that is bright."""
    generator = np.random.default_rng(0)
    for part, count in (("train", 600), ("t10k", 150)):
        labels = generator.integers(0, 4, count)
        pixels = generator.integers(0, 80, (count, 6, 5))
        pixels[np.arange(count), labels] += 150
        write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", pixels)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte", labels)
    return tmp_path


def test_train_on_files_by_path(demo, cache, images, tmp_path):
    output = tmp_path / "model.safetensors"
    arguments = ["train", "--data", str(images), "--epochs", "3", "--batch-size", "32", "--hidden", "24"]
    arguments += ["--threads", "1", "--optimizer", "sgd", "--output", str(output)]
    done = run(arguments, cache, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    epochs = re.findall(r"^epoch +(\d) +loss ([\d.]+) +([\d,]+) images/s +test accuracy ([\d.]+)$", done.stdout, re.M)
    assert [number for number, *_ in epochs] == ["1", "2", "3"]
    assert float(epochs[-1][1]) < float(epochs[0][1])
    assert float(epochs[-1][3]) > 0.95
    state = ts.load(output)
    settings = {key: state["settings"][key] for key in ("model", "features", "hidden", "classes", "optimizer")}
    assert settings == {"model": "mlp", "features": 30, "hidden": [24], "classes": 4, "optimizer": "sgd"}
    assert state["accuracy"] == pytest.approx(float(epochs[-1][3]), abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "/does/not/exist"], "/does/not/exist does not exist; give a folder that holds train-images"),
        (["--data", "{empty}"], "expected train-images-idx3-ubyte"),
        (["--data", "{broken}"], "not an IDX file"),
        (["--data", "digits", "--output", "/does/not/exist/f"], "the folder /does/not/exist does not exist"),
        (["--data", "digits", "--output", "{empty}"], "is a folder"),
        (["--data", "digits", "--epochs", "0"], "--epochs 0: at least 1"),
        (["--data", "digits", "--batch-size", "-3"], "--batch-size -3"),
        (["--data", "digits", "--hidden", "12,x"], "widths separated by commas"),
        (["--data", "digits", "--lr", "nan"], "--lr nan"),
        (["--data", "digits", "--dropout", "1"], "--dropout 1"),
        (["--data", "digits", "--optimizer", "sgd", "--lr", "1e30", "--epochs", "1"], "smaller learning rate"),
    ],
)
def test_mistakes_are_one_line(arguments, message, tmp_path, capfd):
    empty, broken = tmp_path / "empty", tmp_path / "broken"
    empty.mkdir()
    broken.mkdir()
    for part in ("train", "t10k"):
        (broken / f"{part}-images-idx3-ubyte").write_bytes(b"no images at all")
        (broken / f"{part}-labels-idx1-ubyte").write_bytes(b"no labels either")
    code = main(["train", *(a.format(empty=empty, broken=broken) for a in arguments)])
    error = capfd.readouterr().err
    assert code == 2
    assert message in error
    assert error.startswith("tensorsmith train: ") and error.count("\n") == 1
    assert list(empty.iterdir()) == []


def test_mlp_refuses_empty_layers():
    with pytest.raises(ValueError, match="every width must be at least 1, got 4 - 0 - 2"):
        MLP(4, (0,), 2)
