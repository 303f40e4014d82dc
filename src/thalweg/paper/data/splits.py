"""Images with their labels, in parts."""

from torch import Tensor

from ...errors import ThalwegError

Pair = tuple[Tensor, Tensor]


def held_out(train: Pair, count: int = 5000) -> tuple[Pair, Pair]:
    """Split off the last `count` training images, to choose settings with.

    Examples:
        >>> import torch
        >>> (_, labels), (_, held) = held_out((torch.zeros(10, 1, 8, 8), torch.arange(10)), count=3)
        >>> labels.tolist(), held.tolist()
        ([0, 1, 2, 3, 4, 5, 6], [7, 8, 9])

    Args:
        train: Images and labels.
        count: The number of images to hold out.

    Returns:
        The rest of the training set, and the held-out images, each with labels.
    """
    images, labels = train
    if not 0 < count < len(images):
        raise ThalwegError(f"what is held out must be some of the {len(images)} images and not all; got count={count}")
    return (images[:-count], labels[:-count]), (images[-count:], labels[-count:])
