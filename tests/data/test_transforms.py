"""Transforms of images, folders of images, lines of text."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

import tensorsmith as ts
from tensorsmith import data
from tensorsmith.data import transforms as t


def test_to_tensor():
    rng = np.random.default_rng(0)
    array = rng.integers(0, 256, (5, 7, 3)).astype(np.uint8)
    for picture in (array, Image.fromarray(array)):
        found = t.ToTensor()(picture)
        assert found.dtype is ts.float32 and found.shape == (3, 5, 7)
        np.testing.assert_array_equal(found.numpy(), array.transpose(2, 0, 1).astype(np.float32) / 255)
    assert t.ToTensor()(array[..., 0]).shape == (1, 5, 7)
    assert t.ToTensor()(np.ones((2, 2), np.float64)).dtype is ts.float64
    with pytest.raises(ValueError, match="Got 4 dimensions"):
        t.ToTensor()(np.zeros((1, 2, 3, 4)))
    with pytest.raises(TypeError, match="PIL Image or ndarray. Got"):
        t.ToTensor()("cat.png")


def test_normalise():
    image = ts.arange(12.0).reshape(3, 2, 2)
    found = t.Normalize([1.0, 2.0, 3.0], [2.0, 4.0, 8.0])(image)
    expected = (image.numpy() - np.array([1, 2, 3])[:, None, None]) / np.array([2, 4, 8])[:, None, None]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
    assert t.Normalize([0.0], [2.0], inplace=True)(image) is image and image[2, 1, 1].item() == 5.5
    with pytest.raises(ValueError, match="std holds a zero"):
        t.Normalize([0.0], [0.0])
    with pytest.raises(TypeError, match="should be a float tensor. Got tensorsmith.uint8"):
        t.Normalize([0.0], [1.0])(ts.zeros(1, 2, 2, dtype=ts.uint8))
    with pytest.raises(ValueError, match=r"\(4, 4\)"):
        t.Normalize([0.0], [1.0])(ts.zeros(4, 4))


@pytest.mark.parametrize("shape", [(1, 6, 7), (2, 3, 9, 8), (5, 5)])
def test_crops(shape):
    image = ts.arange(int(np.prod(shape))).reshape(shape)
    middle = t.CenterCrop((3, 5))(image)
    top, left = round((shape[-2] - 3) / 2), round((shape[-1] - 5) / 2)
    np.testing.assert_array_equal(middle.numpy(), image.numpy()[..., top : top + 3, left : left + 5])
    assert t.CenterCrop(12)(image).shape[-2:] == (12, 12) and t.CenterCrop(12)(image).sum() == image.sum()
    places = set()
    for _ in range(60):
        found = t.RandomCrop(4)(image).numpy()
        first = int(found.reshape(-1)[0])
        row, column = divmod(first % (shape[-2] * shape[-1]), shape[-1])
        np.testing.assert_array_equal(found, image.numpy()[..., row : row + 4, column : column + 4])
        places.add((row, column))
    assert len(places) > 2
    assert t.RandomCrop(shape[-2:], padding=2)(image).shape == shape
    assert t.RandomCrop(20, pad_if_needed=True, fill=1)(image).shape[-2:] == (20, 20)
    with pytest.raises(ValueError, match=r"Required crop size \(10, 10\) is larger than input image size"):
        t.RandomCrop(10)(image)
    with pytest.raises(ValueError, match="0x2"):
        t.RandomCrop((0, 2))


def test_flips_and_chains():
    image = ts.arange(6).reshape(1, 2, 3)
    assert t.RandomHorizontalFlip(1.0)(image).tolist() == [[[2, 1, 0], [5, 4, 3]]]
    assert t.RandomVerticalFlip(1.0)(image).tolist() == [[[3, 4, 5], [0, 1, 2]]]
    assert t.RandomHorizontalFlip(0.0)(image) is image
    ts.manual_seed(0)
    turned = sum(t.RandomHorizontalFlip()(image)[0, 0, 0].item() == 2 for _ in range(200))
    assert 60 < turned < 140
    chain = t.Compose([t.ToTensor(), t.Normalize([0.5], [0.5]), t.Lambda(lambda x: x * 2)])
    assert chain(np.full((2, 2), 255, np.uint8)).tolist() == [[[2.0, 2.0], [2.0, 2.0]]]
    assert "Normalize(mean=[0.5], std=[0.5])" in repr(chain)
    with pytest.raises(TypeError, match="apply ToTensor first"):
        t.RandomCrop(3)(np.zeros((4, 4)))
    with pytest.raises(ValueError, match="got 1.5"):
        t.RandomVerticalFlip(1.5)
    with pytest.raises(TypeError, match="callable"):
        t.Lambda(3)


def test_a_folder_of_images(tmp_path):
    for number, name in enumerate(("dog", "cat")):
        for i in range(3):
            (tmp_path / name / "more").mkdir(parents=True, exist_ok=True)
            pixels = np.full((4, 5, 3), 100 * number + i, np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / ("more" if i == 2 else "") / f"{i}.png")
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    images = data.ImageFolder(tmp_path, transform=t.ToTensor())
    assert images.classes == ["cat", "dog"] and images.class_to_idx == {"cat": 0, "dog": 1}
    assert images.targets == [0, 0, 0, 1, 1, 1] and len(images) == 6
    x, y = next(iter(data.DataLoader(images, 6, num_workers=2)))
    assert x.shape == (6, 3, 4, 5) and y.tolist() == images.targets
    assert [round(v * 255) for v in x[:, 0, 0, 0].tolist()] == [100, 101, 102, 0, 1, 2]
    assert data.ImageFolder(tmp_path, target_transform=lambda n: -n)[5][1] == -1
    assert len(data.ImageFolder(tmp_path, is_valid_file=lambda p: p.endswith("0.png"))) == 2
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no valid file for the class empty"):
        data.ImageFolder(tmp_path)
    with pytest.raises(FileNotFoundError, match="class folder"):
        data.ImageFolder(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        data.ImageFolder(tmp_path / "nowhere")
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="broken.png is not an image"):
        data.folders.load_image(broken)


def test_lines_of_text(tmp_path):
    path = tmp_path / "t.txt"
    path.write_bytes("erste Zeile\r\nzweite ä\n\nlast".encode())
    lines = data.TextLines(path)
    assert [lines[i] for i in range(len(lines))] == ["erste Zeile", "zweite ä", "", "last"]
    assert lines[-1] == "last" and data.TextLines(path, transform=len)[1] == 8
    assert list(data.DataLoader(lines, 3, num_workers=1)) == [["erste Zeile", "zweite ä", ""], ["last"]]
    with pytest.raises(IndexError, match="line 4 is out of range for 4 lines"):
        lines[4]
    path.write_bytes(b"ok\n\xff\xfe\n")
    with pytest.raises(ValueError, match="line 1 of .* is not UTF-8"):
        data.TextLines(path)[1]
    path.write_bytes(b"")
    assert len(data.TextLines(path)) == 0
