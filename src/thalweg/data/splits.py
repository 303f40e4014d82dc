"""Images with their labels, in parts."""

from torch import Tensor

from ..errors import ThalwegError

Pair = tuple[Tensor, Tensor]


def held_out(train: Pair, count: int = 5000) -> tuple[Pair, Pair]:
    """The training set without its last `count` images, and those, to choose settings by.

    >>> import torch
    >>> (_, labels), (_, held) = held_out((torch.zeros(10, 1, 8, 8), torch.arange(10)), count=3)
    >>> labels.tolist(), held.tolist()
    ([0, 1, 2, 3, 4, 5, 6], [7, 8, 9])
    """
    images, labels = train
    if not 0 < count < len(images):
        raise ThalwegError(f"what is held out must be some of the {len(images)} images and not all; got count={count}")
    return (images[:-count], labels[:-count]), (images[-count:], labels[-count:])
