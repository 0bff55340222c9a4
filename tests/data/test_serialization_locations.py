"""`load` with the arguments that PyTorch's scripts give."""

import pytest

import tensorsmith as ts


def test_map_location_and_weights_only(tmp_path):
    file = tmp_path / "state"
    ts.save({"w": ts.ones(2), "epoch": 3}, file)
    for location in (None, "cpu", ts.device("cpu")):
        found = ts.load(file, map_location=location, weights_only=True)
        assert found["w"].tolist() == [1.0, 1.0] and found["epoch"] == 3
    if ts.cuda.is_available():
        assert ts.load(file, map_location="cuda:0")["w"].device == "cuda:0"
    else:
        with pytest.raises(RuntimeError, match="CUDA devices need NVIDIA"):
            ts.load(file, map_location="cuda:0")
