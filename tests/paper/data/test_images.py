"""Folders of images: whole, cut, mirrored, and unreadable."""

import numpy as np
import pytest
import torch
from PIL import Image

import thalweg as tw
from thalweg.paper.data import images_in
from thalweg.paper.data.images import AREA, MEAN, RATIO, STD, _window


@pytest.fixture
def folder(tmp_path):
    """Three classes; across and down, every image runs from dark to light in red and in green."""
    for name, ending, count in (("cat", "JPEG", 3), ("ant", "png", 2), ("bee", "jpg", 1)):
        (tmp_path / name).mkdir()
        for i in range(count):
            height, width = 40 + 10 * i, 60
            red, green = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
            pixels = np.stack([red, green, np.full_like(red, 128)], axis=2).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{i}.{ending}")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    return tmp_path


def colours(images):
    return images * STD[:, None, None] + MEAN[:, None, None]


def test_image_folder_gives_the_middle_of_each_image_in_order(folder):
    loader = images_in(folder, 4, size=28)
    (first, labels), (_, rest) = loader
    assert loader.dataset.classes == ["ant", "bee", "cat"]
    assert (labels.tolist(), rest.tolist()) == ([0, 0, 1, 2], [2, 2])
    assert (first.shape, first.dtype) == ((4, 3, 28, 28), torch.float32)
    red, green, blue = colours(first[0])
    low = (1 - 28 / 48) / 2  # the short side is 32, so the long one is 48
    assert red.mean(0)[[0, -1]].tolist() == pytest.approx([low, 1 - low], abs=0.02)
    assert green.mean(1)[[0, -1]].tolist() == pytest.approx([2 / 32, 30 / 32], abs=0.03)
    assert blue.mean().item() == pytest.approx(128 / 255, abs=0.01)


def test_grey_and_transparent_images_become_rgb(tmp_path):
    (tmp_path / "a").mkdir()
    Image.new("L", (9, 9), 255).save(tmp_path / "a" / "grey.png")
    Image.new("RGBA", (9, 9), (255, 255, 255, 0)).save(tmp_path / "a" / "clear.png")
    (images, _) = next(iter(images_in(tmp_path, 2, size=7)))
    assert torch.allclose(colours(images), torch.ones(2, 3, 7, 7))


def passed(folder, workers):
    return [images for images, _ in images_in(folder, 4, size=16, train=True, workers=workers)]


@pytest.mark.parametrize("workers", [0, 1])
def test_image_crops_are_decided_by_the_seed(folder, workers):
    torch.manual_seed(1)
    first, second = passed(folder, workers), passed(folder, workers)
    torch.manual_seed(1)
    again = passed(folder, workers)
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], second[0])


def test_image_crops_and_mirrors(folder):
    torch.manual_seed(0)
    loader, mirrored, seen = images_in(folder, 6, size=16, train=True), 0, set()
    for _ in range(30):
        images, labels = next(iter(loader))
        seen.add(tuple(labels.tolist()))
        red, green, _ = colours(images).unbind(1)
        across, down = red.mean(1), green.mean(2)
        mirrored += int((across[:, -1] < across[:, 0]).sum())
        assert (down[:, -1] > down[:, 0]).all()
    assert 60 < mirrored < 120  # of 180
    assert len(seen) > 5


@pytest.mark.parametrize("size", [(500, 375), (100, 400), (30, 20), (1, 1)])
def test_image_crop_keeps_its_limits(size):
    torch.manual_seed(0)
    boxes = torch.tensor([_window(*size) for _ in range(300)])
    sides = boxes[:, 2:] - boxes[:, :2]
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2:] <= torch.tensor(size)).all()
    assert (sides >= 1).all()
    if min(size) > 50:  # where rounding to whole pixels is small
        ratio, area = sides[:, 0] / sides[:, 1], sides.prod(1) / (size[0] * size[1])
        assert ratio.min() > 0.95 * RATIO[0]
        assert ratio.max() < 1.05 * RATIO[1]
        assert area.min() > 0.95 * AREA[0]


def test_image_that_is_long_gives_its_middle():
    assert _window(400, 10) == (193, 0, 206, 10)
    assert _window(10, 400) == (0, 193, 10, 206)


def test_image_folder_without_images_is_refused(tmp_path):
    with pytest.raises(tw.ThalwegError, match=r"there is no folder .*nowhere"):
        images_in(tmp_path / "nowhere", 4)
    with pytest.raises(tw.ThalwegError, match="holds no folder"):
        images_in(tmp_path, 4)
    (tmp_path / "train" / "ant").mkdir(parents=True)
    with pytest.raises(tw.ThalwegError, match="ant holds no JPEG or PNG file"):
        images_in(tmp_path / "train", 4)
    (tmp_path / "val").mkdir()
    with pytest.raises(tw.ThalwegError, match=r"name one of them, as .*train"):
        images_in(tmp_path, 4)


@pytest.mark.parametrize("damage", [lambda content: content[: len(content) // 2], lambda content: b"no image"])
def test_unreadable_image_is_named(folder, damage):
    path = folder / "ant" / "1.png"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(tw.ThalwegError, match=r"ant.1\.png cannot be read as an image"):
        list(images_in(folder, 6, size=16))
