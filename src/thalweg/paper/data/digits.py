"""The handwritten digits inside scikit-learn: real images that need no download."""

import torch
from torch import Tensor

TEST = 500  # the last images, by other writers than the first


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test images (uint8, 1 x 8 x 8) with their labels.

    Examples:
        >>> (images, labels), (test_images, _) = digits()
        >>> images.shape, images.dtype, len(test_images)
        (torch.Size([1297, 1, 8, 8]), torch.uint8, 500)
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels * 255 / 16).round().to(torch.uint8).reshape(-1, 1, 8, 8)
    targets = torch.tensor(labels, dtype=torch.long)
    return (images[:-TEST], targets[:-TEST]), (images[-TEST:], targets[-TEST:])
