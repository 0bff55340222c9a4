"""Datasets of files: a folder of images with a folder a class, and the lines of a text file."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tensorsmith.data.dataset import Dataset

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def load_image(path: str | os.PathLike[str]) -> Any:
    """A file as a Pillow image of three channels. ImportError where Pillow is missing, ValueError for no image."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("reading images needs Pillow: pip install 'tensorsmith[images]'") from error
    with open(path, "rb") as file:
        try:
            return Image.open(file).convert("RGB")
        except OSError as error:
            raise ValueError(f"{path} is not an image that Pillow can read: {error}") from error


class ImageFolder(Dataset):
    """Images in root/class/..., item i is (image, class number); classes are numbered in alphabetical order.

    root: the folder; transform: of the image (a Pillow image before it), target_transform: of the number
    loader: path -> image, default Pillow in RGB; is_valid_file: path -> bool, default by the file's extension
    `classes`, `class_to_idx`, `samples` (path, number) and `targets` are PyTorch's.
    Errors: FileNotFoundError for a missing root, no classes, or a class without images.
    """

    def __init__(
        self, root: str | os.PathLike[str], transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None, loader: Callable[[str], Any] = load_image,
        is_valid_file: Callable[[str], bool] | None = None,
    ) -> None:  # fmt: skip
        self.root = Path(root)
        if not self.root.is_dir():
            raise FileNotFoundError(f"ImageFolder: {root} is not a folder; give one that holds a folder for every class")
        self.transform, self.target_transform, self.loader = transform, target_transform, loader
        self.classes = sorted(entry.name for entry in self.root.iterdir() if entry.is_dir())
        if not self.classes:
            raise FileNotFoundError(f"ImageFolder: couldn't find any class folder in {root}")
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        self.samples: list[tuple[str, int]] = []
        wanted = is_valid_file or (lambda path: path.lower().endswith(IMAGE_EXTENSIONS))
        for name, number in self.class_to_idx.items():
            before = len(self.samples)
            for folder, _, files in sorted(os.walk(self.root / name, followlinks=True)):
                paths = (os.path.join(folder, file) for file in sorted(files))
                self.samples += [(path, number) for path in paths if wanted(path)]
            if len(self.samples) == before:
                kinds = "" if is_valid_file else f"; supported extensions are {', '.join(IMAGE_EXTENSIONS)}"
                raise FileNotFoundError(f"ImageFolder: found no valid file for the class {name} in {self.root / name}{kinds}")
        self.targets = [number for _, number in self.samples]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        path, number = self.samples[index]
        image = self.loader(path)
        return (
            image if self.transform is None else self.transform(image),
            number if self.target_transform is None else self.target_transform(number),
        )


class TextLines(Dataset):
    """The lines of a UTF-8 text file, read when they are asked for; item i is line i without its line break.

    The places of the lines are kept, 8 bytes a line, not the text. transform: of the line.
    Errors: FileNotFoundError; ValueError for a line that is not UTF-8, naming file and line; IndexError.

    >>> import pathlib, tempfile
    >>> import tensorsmith as ts
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "poem.txt"
    >>> _ = path.write_text("one\\ntwo\\nthree")
    >>> lines = ts.data.TextLines(path)
    >>> len(lines), lines[-1]
    (3, 'three')
    """

    def __init__(self, path: str | os.PathLike[str], transform: Callable[[str], Any] | None = None) -> None:
        self.path, self.transform = Path(path), transform
        self.starts = array("q")
        position = 0
        with open(self.path, "rb") as file:
            for line in file:
                self.starts.append(position)
                position += len(line)
        self.starts.append(position)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Several lines from one opening of the file."""
        found = []
        with open(self.path, "rb") as file:  # opened anew: worker processes must not share a position
            for index in indices:
                number = index + len(self) if index < 0 else index
                if not 0 <= number < len(self):
                    raise IndexError(f"TextLines: line {index} is out of range for {len(self)} lines of {self.path}")
                file.seek(self.starts[number])
                raw = file.read(self.starts[number + 1] - self.starts[number])
                try:
                    line = raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
                except UnicodeDecodeError as error:
                    raise ValueError(f"TextLines: line {number} of {self.path} is not UTF-8: {error}") from None
                found.append(line if self.transform is None else self.transform(line))
        return found
