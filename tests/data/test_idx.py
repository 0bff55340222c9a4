"""IDX files: what is read is what was written, and no damaged or hostile file gets past the reader."""

import gzip
import struct
import tracemalloc

import numpy as np
import pytest

from tensorsmith.data.idx import ELEMENT_TYPES, find_idx_pair, load_idx

CODES = {np.dtype(name).newbyteorder("="): code for code, name in ELEMENT_TYPES.items()}


def idx_bytes(array: np.ndarray) -> bytes:
    header = bytes([0, 0, CODES[array.dtype], array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("dtype", list(CODES), ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 0, 2), (7, 4, 3)], ids=str)
def test_round_trip(tmp_path, compress, dtype, shape):
    array = np.asarray(np.random.default_rng(0).standard_normal(shape) * 50).astype(dtype)
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(idx_bytes(array)) if compress else idx_bytes(array))
    found = load_idx(path)
    assert found.dtype == dtype and found.dtype.isnative and found.shape == shape
    assert np.array_equal(found, array)
    assert found.flags.writeable


WHOLE = idx_bytes(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize(
    "content, what",
    [
        (b"", "not an IDX file"),
        (b"\x89PNG\r\n", "not an IDX file"),
        (b"\0\0\x07\x01\0\0\0\0", "not an IDX file"),
        (WHOLE[:10], "inside its header"),
        (WHOLE[:-1], "claims shape"),
        (WHOLE + b"\0", "more bytes follow"),
        (b"\0\0\x08\xff" + b"\0" * 2000, "claims 255 dimensions"),
        (b"\0\0\x0e\x04" + b"\xff" * 16, "claims shape"),  # 2**131 bytes
    ],
    ids=range(8),
)
def test_damaged_files_are_named(tmp_path, content, what, compress):
    path = tmp_path / "damaged-idx3-ubyte"
    path.write_bytes(gzip.compress(content) if compress else content)
    with pytest.raises(ValueError, match=what) as caught:
        load_idx(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("keep", [12, -9, -4])
def test_truncated_gzip(tmp_path, keep):
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(WHOLE)[:keep])
    with pytest.raises(ValueError, match="damaged gzip file"):
        load_idx(path)


def test_corrupted_gzip(tmp_path):
    path = tmp_path / "corrupt.gz"
    content = bytearray(gzip.compress(idx_bytes(np.arange(10_000, dtype=np.int16))))
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged gzip file|damaged"):
        load_idx(path)


def test_memory_follows_the_data_not_the_header(tmp_path):
    claimed = 1 << 30  # of which the file holds 1 MiB of zeros, which gzip makes small enough to be believable
    header = bytes([0, 0, 0x08, 1]) + struct.pack(">I", claimed)
    path = tmp_path / "claims.gz"
    path.write_bytes(gzip.compress(header + bytes(1 << 20), 0))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="claims shape"):
            load_idx(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20


def test_paths_that_are_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        load_idx(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="is a folder"):
        load_idx(tmp_path)


@pytest.mark.parametrize(
    "train, names, images",
    [
        (True, ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"], 0),
        (True, ["train-images.idx3-ubyte.gz", "train-labels.idx1-ubyte.gz", "t10k-images-idx3-ubyte"], 0),
        (False, ["t10k-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz", "README"], 1),
        (False, ["emnist-digits-test-images-idx3-ubyte", "emnist-digits-test-labels-idx1-ubyte"], 0),
        (True, ["train-images-idx3-ubyte.gz", "train-images-idx3-ubyte", "train-labels-idx1-ubyte"], 1),
    ],
    ids=range(5),
)
def test_pairs_are_found(tmp_path, train, names, images):
    for name in names:
        (tmp_path / name).touch()
    found = find_idx_pair(tmp_path, train)
    assert found[0].name == names[images]
    assert "labels" in found[1].name and found[1].parent == tmp_path


def test_missing_pairs_are_explained(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        find_idx_pair(tmp_path / "nowhere", True)
    with pytest.raises(FileNotFoundError, match="found nothing"):
        find_idx_pair(tmp_path, True)
    (tmp_path / "t10k-images-idx3-ubyte").touch()
    with pytest.raises(FileNotFoundError, match="no images file .*train-images-idx3-ubyte.*found t10k-images"):
        find_idx_pair(tmp_path, True)
    with pytest.raises(FileNotFoundError, match="no labels file"):
        find_idx_pair(tmp_path, False)
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        find_idx_pair(tmp_path / "t10k-images-idx3-ubyte", False)
    for name in ("a-train-images-idx3-ubyte", "b-train-images-idx3-ubyte"):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match="several train images"):
        find_idx_pair(tmp_path, True)
