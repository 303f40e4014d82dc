"""The real data sets, as far as they lie where THALWEG_DATA points."""

import os
from pathlib import Path

import pytest

from thalweg.paper.data import cifar10, cifar100, mnist, ptb
from thalweg.paper.data.fetch import SETS

DATA = os.environ.get("THALWEG_DATA")
pytestmark = pytest.mark.skipif(not DATA, reason="THALWEG_DATA names no folder with data sets")
IMAGES = [
    (cifar10, (50_000, 3, 32, 32), [6, 9, 9, 4], [3, 8, 8, 0]),
    (cifar100, (50_000, 3, 32, 32), [19, 29, 0, 11], [49, 33, 72, 51]),
    (mnist, (60_000, 1, 28, 28), [5, 0, 4, 1], [7, 2, 1, 0]),
]


def skip_without(name):
    if not any((Path(DATA) / place).is_dir() for form in SETS[name] for place in (form.home, *form.also)):
        pytest.skip(f"{name} is not in {DATA}")


@pytest.mark.parametrize(("reader", "shape", "first", "first_test"), IMAGES)
def test_real_images(reader, shape, first, first_test):
    skip_without(reader.__name__)
    (images, labels), (test_images, test_labels) = reader(DATA)
    assert images.shape == shape
    assert test_images.shape == (10_000, *shape[1:])
    assert labels[:4].tolist() == first
    assert test_labels[:4].tolist() == first_test
    assert labels.bincount().sum() == shape[0]
    assert labels.max() == test_labels.max() == (99 if reader is cifar100 else 9)


def test_real_text():
    skip_without("ptb")
    train, valid, test, words = ptb(DATA)
    assert (len(train), len(valid), len(test), len(words)) == (929_589, 73_760, 82_430, 10_000)
    assert words[:4] == ["the", "<unk>", "<eos>", "N"]
