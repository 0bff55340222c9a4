"""`tensorsmith train` stopped and resumed: the same numbers bit for bit, a log and curves."""

from __future__ import annotations

import csv
import signal
import subprocess
import sys

import numpy as np
import pytest
from commands import command, environment, run
from PIL import Image

import tensorsmith as ts
from tensorsmith.cli import main
from tensorsmith.cli.training import Settings, Training
from tensorsmith.data import Images
from tensorsmith.models import LeNet, ResNet20


def images(count, seed, size=8, channels=1):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    pixels = rng.integers(0, 80, (count, size, size))
    pixels[np.arange(count), labels] += 150
    found = Images(pixels.astype(np.uint8), labels, 255.0, ["a", "b", "c"])
    if channels > 1:
        found.images = found.images.expand(-1, channels, -1, -1).clone()
    return found


def tensors(value, place=""):
    """All tensors of a nested state by their place."""
    if isinstance(value, ts.Tensor):
        return {place: value.numpy().tobytes()}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {k: v for key, each in items for k, v in tensors(each, f"{place}/{key}").items()}


@pytest.mark.parametrize("model", ["mlp", "lenet", "resnet20"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_resumed_training_has_the_same_numbers(model, optimizer, compiled, tmp_path):
    def new():
        settings = Settings(3, 16, model, 1e-2, hidden=(12,), dropout=0.2, optimizer=optimizer)
        return Training(settings, images(70, 0), images(30, 1), compiled)

    whole = new()
    epochs = list(whole.epochs(lambda *seen: None))
    assert len(epochs) == 3
    first = new()
    for epoch in first.epochs(lambda *seen: None):
        if epoch.number == 1:
            break
    ts.save(first.state_dict(), tmp_path / "c.safetensors")
    ts.manual_seed(99)
    second = new()
    second.load_state_dict(ts.load(tmp_path / "c.safetensors"))
    rest = list(second.epochs(lambda *seen: None))
    assert [e.number for e in rest] == [2, 3]
    same = ("loss", "train_accuracy", "accuracy", "learning_rate")
    assert [[getattr(e, name) for name in same] for e in epochs[1:]] == [[getattr(e, name) for name in same] for e in rest]
    assert tensors(whole.state_dict()) == tensors(second.state_dict())
    with pytest.raises(ValueError, match="it was trained with lr 0.01, not 0.5"):
        Training(Settings(3, 16, model, 0.5, (12,), 0.2, 0.0, optimizer), images(70, 0), images(30, 1)).load_state_dict(
            second.state_dict()
        )


@pytest.mark.parametrize("more", [[], ["--compile"]], ids=["eager", "compiled"])
def test_an_interrupted_command_goes_on(more, tmp_path_factory, tmp_path):
    cache = tmp_path_factory.mktemp("kernels")
    arguments = ["train", "--data", "digits", "--epochs", "3", "--hidden", "16", "--threads", "1", *more]
    whole = tmp_path / "whole"
    whole.mkdir()
    done = run(arguments, cache, whole)
    assert done.returncode == 0, done.stdout + done.stderr
    process = subprocess.Popen(
        command(*arguments), cwd=tmp_path, env=environment(cache), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    while not process.stdout.readline().startswith("epoch   1"):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    name = "tensorsmith-mlp-digits"
    resumed = run([*arguments, "--resume"], cache, tmp_path)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert f"resumed {name}.safetensors after epoch" in resumed.stdout or "has all of its 3 epochs" in resumed.stdout
    a, b = (ts.load(folder / f"{name}.safetensors") for folder in (whole, tmp_path))
    assert tensors(a) == tensors(b) and a["accuracy"] == b["accuracy"]
    logs = []
    for folder in (whole, tmp_path):
        with open(folder / f"{name}.csv", newline="") as file:
            logs.append([{k: v for k, v in row.items() if k != "images_per_second"} for row in csv.DictReader(file)])
    assert logs[0] == logs[1] and [row["epoch"] for row in logs[0]] == ["1", "2", "3"]
    again = run([*arguments, "--resume"], cache, tmp_path)
    assert again.returncode == 0 and "has all of its 3 epochs" in again.stdout


def test_curves_need_matplotlib_and_the_log_does_not(tmp_path, monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    output = tmp_path / "m.safetensors"
    code = main(["train", "--data", "digits", "--epochs", "1", "--hidden", "4", "--output", str(output)])
    said = capfd.readouterr().out
    assert code == 0 and "matplotlib is not installed; pip install 'tensorsmith[plot]'" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.csv", "m.safetensors"]


def test_curves_are_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `plot`")
    output = tmp_path / "m.safetensors"
    assert main(["train", "--data", "digits", "--epochs", "2", "--hidden", "4", "--output", str(output)]) == 0
    assert (tmp_path / "m.png").read_bytes()[:4] == b"\x89PNG"


def test_folders_of_images(tmp_path, capfd):
    rng = np.random.default_rng(0)
    for part, count in (("train", 40), ("test", 10)):
        for number, name in enumerate(("blue", "red")):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 60, (6, 6, 3)).astype(np.uint8)
                pixels[..., 2 - 2 * number] += 150
                Image.fromarray(pixels).save(tmp_path / part / name / f"{i}.png")
    output = str(tmp_path / "m.safetensors")
    arguments = ["train", "--data", str(tmp_path), "--epochs", "3", "--batch-size", "8", "--output", output]
    assert main([*arguments, "--model", "lenet"]) == 0
    said = capfd.readouterr().out
    assert "80 images of 6x6 to train on, 20 to test, 2 classes" in said and "test accuracy 1.0000" in said
    Image.fromarray(np.zeros((6, 7, 3), np.uint8)).save(tmp_path / "test" / "red" / "0.png")
    assert main(arguments) == 2
    assert "images must be of one size" in capfd.readouterr().err


def test_mistakes_of_resuming(tmp_path, capfd):
    path = tmp_path / "none.safetensors"
    assert main(["train", "--data", "digits", "--resume", "--output", str(path)]) == 2
    assert f"there is no checkpoint {path}" in capfd.readouterr().err
    ts.save({"model": 1}, path)
    assert main(["train", "--data", "digits", "--resume", "--output", str(path)]) == 2
    assert "does not fit" in capfd.readouterr().err


def test_shapes_and_sizes_of_the_models():
    assert LeNet(1, 28, 10)(ts.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert LeNet(3, 32, 7)(ts.zeros(2, 3, 32, 32)).shape == (2, 7)
    assert LeNet(1, 8, 10)(ts.zeros(0, 1, 8, 8)).shape == (0, 10)
    with pytest.raises(ValueError, match="at least 4x4, got 2x2"):
        LeNet(1, 2, 10)
    model = ResNet20(3, 10)
    assert model(ts.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert sum(p.numel() for p in model.parameters()) == 269_722  # 0.27 million, as in the paper
