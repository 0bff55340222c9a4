"""`load` with the arguments that PyTorch's scripts give."""

import pytest

import tensorsmith as ts


def test_map_location_and_weights_only(tmp_path):
    file = tmp_path / "state"
    ts.save({"w": ts.ones(2), "epoch": 3}, file)
    for location in (None, "cpu", ts.device("cpu")):
        found = ts.load(file, map_location=location, weights_only=True)
        assert found["w"].tolist() == [1.0, 1.0] and found["epoch"] == 3
    with pytest.raises(NotImplementedError, match="cuda:0.*CPU"):
        ts.load(file, map_location="cuda:0")
