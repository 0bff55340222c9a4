"""The digits in the package, and images from IDX files."""

import gzip
import struct

import numpy as np
import pytest

from tensorsmith import data
from tensorsmith.data.digits import in_test_part


def test_the_digits_are_all_there():
    images, labels = data.load_digits()
    assert images.shape == (1797, 8, 8) and images.dtype == np.uint8 and images.max() == 16
    assert labels.dtype == np.int64
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert labels[:10].tolist() == list(range(10))
    # The first image, a zero, as the repository prints its row.
    assert images[0].tolist()[0] == [0, 0, 5, 13, 9, 1, 0, 0]
    assert int(images.astype(np.int64).sum()) == 561718


def test_the_split_is_fixed_stratified_and_disjoint():
    train, test = data.Digits(train=True), data.Digits(train=False)
    assert (len(train), len(test)) == (1442, 355)
    _, labels = data.load_digits()
    mask = in_test_part(labels)
    for label in range(10):
        assert mask[labels == label].tolist()[:10] == [False] * 4 + [True] + [False] * 4 + [True]
    assert test.labels.tolist() == labels[mask].tolist()


def test_digits_as_samples_and_batches():
    dataset = data.Digits(train=False)
    image, label = dataset[3]
    images, labels = data.load_digits()
    row = np.flatnonzero(in_test_part(labels))[3]
    assert tuple(image.shape) == (1, 8, 8) and label == labels[row]
    assert np.array_equal(image.numpy()[0] * 16, images[row])
    for shuffle in (False, True):
        batches = list(data.DataLoader(dataset, batch_size=100, shuffle=shuffle))
        assert [tuple(x.shape) for x, _ in batches] == [(100, 1, 8, 8)] * 3 + [(55, 1, 8, 8)]
        assert sorted(np.concatenate([y.numpy() for _, y in batches])) == sorted(dataset.labels.tolist())


def test_a_transform_is_applied_to_samples_and_batches():
    plain, negated = data.Digits(), data.Digits(transform=lambda image: -image)
    assert np.array_equal(negated[0][0].numpy(), -plain[0][0].numpy())
    (x, y), (expected, labels) = (next(iter(data.DataLoader(d, batch_size=8))) for d in (negated, plain))
    assert np.array_equal(x.numpy(), -expected.numpy()) and y.tolist() == labels.tolist()


def write_pair(folder, part, images, labels, compress=False):
    for name, array in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
        content = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
        (folder / (name + ".gz" * compress)).write_bytes(gzip.compress(content) if compress else content)


IMAGES = np.random.default_rng(0).integers(0, 256, (12, 5, 4)).astype(np.uint8)
LABELS = np.arange(12).astype(np.uint8) % 3


@pytest.mark.parametrize("compress", [False, True])
def test_idx_images(tmp_path, compress):
    write_pair(tmp_path, "train", IMAGES, LABELS, compress)
    write_pair(tmp_path, "t10k", IMAGES[:5], LABELS[:5], compress)
    train, test = data.IdxImages(tmp_path), data.IdxImages(tmp_path, train=False)
    assert (len(train), len(test)) == (12, 5)
    assert train.classes == ["0", "1", "2"]
    image, label = train[7]
    assert label == 1 and image.numpy().max() <= 1
    assert np.allclose(image.numpy()[0] * 255, IMAGES[7], atol=1e-4)
    by_file = data.IdxImages(tmp_path / ("train-images-idx3-ubyte" + ".gz" * compress))
    assert np.array_equal(by_file.images.numpy(), train.images.numpy())


def test_idx_files_that_do_not_belong_together(tmp_path):
    write_pair(tmp_path, "train", IMAGES, LABELS[:-1])
    with pytest.raises(ValueError, match="12 images but .* 11 labels"):
        data.IdxImages(tmp_path)
    write_pair(tmp_path, "train", LABELS, LABELS)
    with pytest.raises(ValueError, match=r"expected uint8 images"):
        data.IdxImages(tmp_path)
    write_pair(tmp_path, "train", IMAGES, IMAGES)
    with pytest.raises(ValueError, match=r"expected one integer an image"):
        data.IdxImages(tmp_path)
    write_pair(tmp_path, "train", IMAGES[:0], LABELS[:0])
    with pytest.raises(ValueError, match="holds no images"):
        data.IdxImages(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        data.IdxImages(tmp_path / "nowhere")
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match="labels go beside"):
        data.IdxImages(tmp_path / "train-images-idx3-ubyte")
    (tmp_path / "pictures").write_bytes(b"")
    with pytest.raises(ValueError, match="no label file can be told"):
        data.IdxImages(tmp_path / "pictures")
