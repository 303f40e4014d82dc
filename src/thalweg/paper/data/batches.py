"""Batches without worker processes: the whole set on the device, and its batches made there."""

from collections.abc import Iterator, Sequence
from copy import copy
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import ThalwegError


class DeviceBatches:
    """Batches of images and labels from a data set that is on the device as uint8.

    Examples:
        >>> images, labels = torch.zeros(10, 1, 8, 8, dtype=torch.uint8), torch.arange(10)
        >>> batches = DeviceBatches(images, labels, 4, shuffle=True, crop=1, flip=True)
        >>> len(batches), [len(y) for _, y in batches], [y.tolist() for _, y in batches.clean()][0]
        (3, [4, 4, 2], [0, 1, 2, 3])

    Args:
        images: uint8, (count, channels, height, width).
        labels: One per image.
        batch_size: Images per batch.
        shuffle: Use a new order in each epoch.
        crop: Pad by this many pixels and take a random crop.
        flip: Flip images horizontally with probability 1/2.
        mean: Per channel, for pixels between 0 and 1, for normalisation.
        std: Per channel, for pixels between 0 and 1, for normalisation.
        device: Where the data set is stored and batches are made.
        generator: The random generator, on the same device; torch's global one by default.
        drop_last: Leave out a short last batch.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        batch_size: int,
        *,
        shuffle: bool = False,
        crop: int = 0,
        flip: bool = False,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        device: torch.device | str = "cpu",
        generator: torch.Generator | None = None,
        drop_last: bool = False,
    ):
        if images.dtype != torch.uint8 or images.ndim != 4 or len(images) != len(labels):
            raise ThalwegError(
                "images must be uint8 of shape (count, channels, height, width), with one label each; got "
                f"{images.dtype} {tuple(images.shape)} and {len(labels)} labels"
            )
        if batch_size < 1 or len(images) == 0:
            raise ThalwegError(
                f"batches need at least one image and a size of at least 1; got {len(images)} and {batch_size}"
            )
        self.images = images.to(device)
        self.labels = labels.to(device)
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.crop = crop
        self.flip = flip
        self.mean, self.std = (255 * torch.tensor(v, device=device).reshape(1, -1, 1, 1) for v in (mean, std))
        self.generator = generator
        self.drop_last = drop_last

    def clean(self, batch_size: int | None = None) -> "DeviceBatches":
        """The same data in order and without augmentation, for evaluation; nothing is copied.

        Args:
            batch_size: Images per batch; by default as many as before.
        """
        view = copy(self)
        view.__dict__.pop("_padded", None)
        vars(view).update(shuffle=False, crop=0, flip=False, drop_last=False, batch_size=batch_size or self.batch_size)
        return view

    def widened(self, batch_size: int) -> "DeviceBatches":
        """The same data in larger batches, for measurements that do not depend on their size; unchanged if batches are
        random.

        Args:
            batch_size: Images per batch; unchanged if batches are as large already.
        """
        chance = self.shuffle or self.crop or self.flip or self.drop_last
        return self if chance or batch_size <= self.batch_size else self.clean(batch_size)

    @property
    def device(self) -> torch.device:
        """The device on which batches are made."""
        return self.images.device

    @property
    def contents(self) -> dict[str, Any]:
        """Everything that determines the batches but the state of the generator; a run folder compares it."""
        return {key: value for key, value in vars(self).items() if key not in ("_padded", "generator")}

    def __len__(self) -> int:
        whole, rest = divmod(len(self.images), self.batch_size)
        return whole if self.drop_last or rest == 0 else whole + 1

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return map(self.make_batch, self.draws())

    def draws(self) -> Iterator[Tensor]:
        """The random draws for each batch of one epoch: a row per image with its index, and with augmentation the
        position of its crop and whether it is flipped.
        """
        count, device, generator = len(self.images), self.device, self.generator
        draw = partial(torch.randint, size=(count,), device=device, generator=generator)
        order = torch.randperm(count, device=device, generator=generator) if self.shuffle else None
        columns = [torch.arange(count, device=device) if order is None else order]
        if self.crop or self.flip:
            columns += [draw(2 * self.crop + 1), draw(2 * self.crop + 1)]
            columns += [draw(2) if self.flip else torch.zeros_like(columns[0])]
        yield from torch.stack(columns, dim=1).split(self.batch_size)[: len(self)]

    def make_batch(self, draw: Tensor) -> tuple[Tensor, Tensor]:
        """Make a batch from tensors alone, so that it can be captured in a CUDA graph.

        Args:
            draw: One of the `draws`.
        """
        chosen = draw[:, 0]
        pixels = self.images[chosen] if draw.shape[1] == 1 else self._window(*draw.T)
        return (pixels.float() - self.mean) / self.std, self.labels[chosen]

    def _window(self, chosen: Tensor, top: Tensor, left: Tensor, mirrored: Tensor) -> Tensor:
        device, (channels, height, width) = chosen.device, self.images.shape[1:]
        rows = top[:, None] + torch.arange(height, device=device)
        along = torch.arange(width, device=device)
        columns = left[:, None] + torch.where(mirrored[:, None] == 1, width - 1 - along, along)
        channel = torch.arange(channels, device=device)[:, None, None]
        return self._padded[chosen[:, None, None, None], channel, rows[:, None, :, None], columns[:, None, None, :]]

    @cached_property
    def _padded(self) -> Tensor:
        return F.pad(self.images, [self.crop] * 4) if self.crop else self.images


class TokenBatches:
    """Batches `(inputs, fresh, targets)` for a recurrent network that carries its state from one batch to the next.

    Examples:
        >>> for inputs, fresh, targets in TokenBatches(torch.arange(11), batch_size=2, steps=2):
        ...     inputs.tolist(), fresh.item(), targets.tolist()
        ([[0, 1], [5, 6]], 1.0, [[1, 2], [6, 7]])
        ([[2, 3], [7, 8]], 0.0, [[3, 4], [8, 9]])

    The text is cut into `batch_size` streams of equal length, and row i of every batch continues row i of the previous
    one. Targets are the tokens that follow. `fresh` is 1 in the first batch of an epoch, where the state must be reset
    to zero, and 0 afterwards. Tokens that do not fill the streams, or `steps` at their end, are dropped.

    Args:
        tokens: The text, one long row.
        batch_size: The number of streams.
        steps: Tokens of each stream in a batch.
        device: Where the tokens are stored.
    """

    def __init__(self, tokens: Tensor, batch_size: int = 20, steps: int = 35, device: torch.device | str = "cpu"):
        length = len(tokens) // max(batch_size, 1)
        if tokens.ndim != 1 or min(batch_size, steps) < 1 or length <= steps:
            raise ThalwegError(
                "tokens must be one row, long enough for one batch of batch_size x steps and one more column; got "
                f"{tuple(tokens.shape)}, batch_size={batch_size} and steps={steps}"
            )
        self.streams = tokens[: batch_size * length].reshape(batch_size, length).to(device)
        self.steps, self.along = steps, torch.arange(steps, device=device)

    @property
    def device(self) -> torch.device:
        """The device on which batches are made."""
        return self.streams.device

    @property
    def contents(self) -> dict[str, Any]:
        """Everything that determines the batches; a run folder compares it."""
        return {"streams": self.streams, "steps": self.steps}

    def __len__(self) -> int:
        return (self.streams.shape[1] - 1) // self.steps

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        return map(self.make_batch, self.draws())

    def draws(self) -> Iterator[Tensor]:
        """For each batch of one epoch, its position in the streams."""
        return iter(torch.arange(len(self), device=self.device) * self.steps)

    def make_batch(self, start: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Make a batch from tensors alone, so that it can be captured in a CUDA graph.

        Args:
            start: One of the `draws`, the position of the batch in the streams.
        """
        place = start + self.along
        return self.streams[:, place], (start == 0).float(), self.streams[:, place + 1]
