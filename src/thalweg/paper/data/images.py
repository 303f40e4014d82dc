"""A folder of images, a folder for each class, as ImageNet comes."""

from math import log
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ...errors import ThalwegError

# of ImageNet's pixels, between 0 and 1
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
ENDINGS = {".jpeg", ".jpg", ".png"}
MARGIN = 256 / 224  # the short side before the crop, as a multiple of the crop
AREA, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10  # of random crops

Example = tuple[Tensor, int]


def images_in(
    folder: str | Path, batch_size: int, *, size: int = 224, train: bool = False, workers: int = 0
) -> DataLoader[Example]:
    """Batches of images (float32, 3 x size x size, normalised as for ImageNet) and their class indices.

    Examples:
        >>> for images, labels in images_in("imagenet/train", 256, train=True, workers=8):  # doctest: +SKIP
        ...     print(images.shape, labels.shape)
        torch.Size([256, 3, 224, 224]) torch.Size([256])

    All randomness comes from torch, so `torch.manual_seed`, or the seed of a run, determines it.

    Args:
        folder: Contains one folder per class, with JPEG or PNG files; classes are numbered in the order of their names.
        batch_size: Images per batch.
        size: Height and width of the images.
        train: Shuffle, and take a random resized crop of each image, randomly flipped; otherwise the centre crop, in
            order.
        workers: The number of processes that load images; the images drawn for a seed depend on it.
    """
    return DataLoader(ImageFolder(Path(folder), size, train), batch_size, shuffle=train, num_workers=workers)


class ImageFolder(Dataset[Example]):
    """The images of all classes, one after another, each as a tensor with its class index."""

    def __init__(self, folder: Path, size: int, train: bool):
        self.size, self.train, self.classes = size, train, _classes(folder)
        self.files = [(path, label) for label, name in enumerate(self.classes) for path in _images(folder / name)]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Example:
        path, label = self.files[index]
        try:
            with Image.open(path) as file:
                image = file.convert("RGB")
        except (OSError, SyntaxError, ValueError) as error:  # a broken PNG is a SyntaxError
            raise ThalwegError(f"{path} cannot be read as an image ({error}): repair it, or remove it") from None
        image = _varied(image, self.size) if self.train else _middle(image, self.size)
        pixels = torch.from_numpy(np.array(image)).float() / 255
        return ((pixels - MEAN) / STD).permute(2, 0, 1).contiguous(), label


def _classes(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise ThalwegError(
            f"images must be in a folder that holds a folder for each class; there is no folder {folder}"
        )
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not names:
        raise ThalwegError(f"images must be in a folder for each class; {folder} holds no folder: name the one above")
    if {"train", "val"} <= set(names):
        raise ThalwegError(
            f"{folder} holds the parts 'train' and 'val' of a data set: name one of them, as {folder / 'train'}"
        )
    return names


def _images(folder: Path) -> list[str]:
    paths = sorted(str(path) for path in folder.iterdir() if path.suffix.lower() in ENDINGS)
    if not paths:
        raise ThalwegError(f"every class must have images; {folder} holds no JPEG or PNG file: add some, or remove it")
    return paths


def _middle(image: Image.Image, size: int) -> Image.Image:
    """The centre crop, after resizing the short side to a little more than `size`."""
    scale = round(size * MARGIN) / min(image.size)
    width, height = (max(round(side * scale), size) for side in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    return image.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + size, top + size))


def _varied(image: Image.Image, size: int) -> Image.Image:
    """A random crop at the size wanted, flipped half of the time."""
    window = image.resize((size, size), Image.Resampling.BILINEAR, box=_window(*image.size))
    return window.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if torch.rand(()) < 0.5 else window


def _window(width: int, height: int) -> tuple[float, float, float, float]:
    """A crop of random area, aspect ratio and position: the first that fits, or else the largest centre crop."""
    tries = torch.rand(TRIES, 2, dtype=torch.float64)
    area = width * height * (AREA[0] + (AREA[1] - AREA[0]) * tries[:, 0])
    ratio = (log(RATIO[0]) + log(RATIO[1] / RATIO[0]) * tries[:, 1]).exp()
    sides = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()], dim=1).round().clamp(min=1)
    fitting = sides[(sides <= torch.tensor([width, height])).all(dim=1)].tolist()
    if not fitting:
        wide, high = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))
        left, top = (width - wide) // 2, (height - high) // 2
    else:
        wide, high = map(int, fitting[0])
        left, top = (int(torch.randint(room + 1, ())) for room in (width - wide, height - high))
    return left, top, left + wide, top + high
