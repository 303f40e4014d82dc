"""Batches on the device: every image once, crops and flips that are crops and flips."""

import pytest
import torch
from torch.nn import functional as F

import thalweg as tw
from thalweg.paper.data import DeviceBatches
from thalweg.runtime.transfer import source

IMAGES = torch.arange(10 * 2 * 4 * 4).reshape(10, 2, 4, 4).remainder(251).to(torch.uint8)
LABELS = torch.arange(10)


def test_device_batches_have_every_image_once_per_pass_in_a_new_order():
    batches = DeviceBatches(IMAGES, LABELS, 4, shuffle=True)
    torch.manual_seed(0)
    orders = [torch.cat([y for _, y in batches]) for _ in range(2)]
    assert all(order.sort().values.equal(LABELS) for order in orders)
    assert not orders[0].equal(orders[1])
    for x, y in batches:
        assert torch.equal(x, IMAGES[y].float() / 255)


def test_device_batches_order_is_decided_by_the_generator():
    first, second = (
        [
            y.tolist()
            for _, y in DeviceBatches(IMAGES, LABELS, 4, shuffle=True, generator=torch.Generator().manual_seed(1))
        ]
        for _ in range(2)
    )
    assert first == second


def test_device_batches_crop_the_padded_image_and_mirror():
    torch.manual_seed(0)
    padded = F.pad(IMAGES, [1] * 4).float() / 255
    offsets, mirrored = set(), set()
    for _ in range(30):
        for x, y in DeviceBatches(IMAGES, LABELS, 4, shuffle=True, crop=1, flip=True):
            for image, label in zip(x, y.tolist(), strict=True):
                matches = [
                    (dy, dx, flip)
                    for dy in range(3)
                    for dx in range(3)
                    for flip in (False, True)
                    if torch.equal(image, _window(padded[label], dy, dx, flip))
                ]
                assert len(matches) == 1
                offsets.add(matches[0][:2])
                mirrored.add(matches[0][2])
    assert len(offsets) == 9
    assert mirrored == {False, True}


def _window(image, dy, dx, flip):
    window = image[:, dy : dy + 4, dx : dx + 4]
    return window.flip(2) if flip else window


def test_device_batches_normalise_per_channel():
    x, _ = next(iter(DeviceBatches(IMAGES, LABELS, 10, mean=(0.5, 0.25), std=(0.1, 0.2))))
    plain = IMAGES.float() / 255
    assert torch.allclose(x[:, 0], (plain[:, 0] - 0.5) / 0.1, atol=1e-5)
    assert torch.allclose(x[:, 1], (plain[:, 1] - 0.25) / 0.2, atol=1e-5)


def test_device_batches_clean_view_shares_the_data_and_is_not_random():
    batches = DeviceBatches(IMAGES, LABELS, 4, shuffle=True, crop=1, flip=True, drop_last=True)
    clean = batches.clean(batch_size=5)
    assert clean.images.data_ptr() == batches.images.data_ptr()
    assert (len(batches), len(clean)) == (2, 2)
    assert torch.equal(torch.cat([x for x, _ in clean]), IMAGES.float() / 255)


@pytest.mark.parametrize(
    ("images", "labels", "size"), [(IMAGES.float(), LABELS, 4), (IMAGES, LABELS[:5], 4), (IMAGES[0], LABELS, 4)]
)
def test_device_batches_take_only_bytes_with_labels(images, labels, size):
    with pytest.raises(tw.ThalwegError, match="images must be uint8"):
        DeviceBatches(images, labels, size)


def test_device_batches_refuse_empty_data():
    with pytest.raises(tw.ThalwegError, match="at least one image"):
        DeviceBatches(IMAGES[:0], LABELS[:0], 4)


def test_device_batches_widened_only_where_order_does_not_matter():
    images, labels = torch.zeros(20, 1, 4, 4, dtype=torch.uint8), torch.zeros(20, dtype=torch.long)
    batches = tw.data.DeviceBatches(images, labels, 4)
    assert batches.widened(10).batch_size == 10
    assert batches.widened(2) is batches
    shuffled = tw.data.DeviceBatches(images, labels, 4, shuffle=True)
    assert shuffled.widened(10) is shuffled

    class Own(tw.data.DeviceBatches):
        def __iter__(self):
            return iter([(torch.ones(1), torch.ones(1))])

    passes, make = source(Own(images, labels, 4), torch.device("cpu"))
    assert torch.equal(make(next(passes()))[0], torch.ones(1))
