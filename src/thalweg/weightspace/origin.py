"""The path through the origin of weight space: a ReLU network keeps its predictions but not its confidence."""

from torch import nn

from ..errors import ThalwegError, real_number
from .layout import named_parameters
from .weights import Weights, check_agreement

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
BETWEEN = (  # layers that commute with a factor t
    *(nn.ReLU, nn.LeakyReLU, nn.Identity, nn.Flatten, nn.Dropout, nn.Dropout2d, nn.Sequential),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
)


class OriginPath:
    """The trivial path between two networks through the origin, from the paper's supplement.

    At s in [0, 1], with t = |1 - 2 s|, layer i has weights W_i t and biases b_i t^i, which multiplies the logits by
    t^n.

    Examples:
        >>> import torch
        >>> network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
        >>> a, x = Weights.of(network), torch.ones(1, 3).double()
        >>> logits = network(x)
        >>> OriginPath(network, a, a).point(0.25).load_into(network)
        >>> bool(torch.allclose(network(x), 0.5**2 * logits))
        True

    Args:
        module: An `nn.Sequential` of linear and convolutional layers with ReLU and pooling between them.
        start: The network at s = 0.
        end: The network at s = 1.
    """

    def __init__(self, module: nn.Module, start: Weights, end: Weights):
        check_agreement(start, end)
        self.start, self.end = start, end
        odd = next((part for part in module.modules() if not isinstance(part, (*LAYERS, *BETWEEN))), None)
        if odd is not None or start.layout.frozen:
            found = f"a {type(odd).__name__}" if odd is not None else f"'{start.layout.frozen[0]}', which is frozen"
            raise ThalwegError(
                "the path through the origin is for nn.Sequential chains of linear and convolutional layers with ReLU "
                f"and pooling, all of them trainable; this network has {found}"
            )
        layers = [part for part in module.modules() if isinstance(part, LAYERS)]
        names = {id(parameter): name for name, parameter in named_parameters(module).items()}
        self.powers = {
            names[id(parameter)]: 1 if kind == "weight" else number
            for number, layer in enumerate(layers, start=1)
            for kind, parameter in layer.named_parameters(recurse=False)
        }

    def shrink(self, s: float) -> float:
        """t, the factor of the weights."""
        return abs(1 - 2 * s)

    def point(self, s: float) -> Weights:
        """The weights at s; the origin itself, s = 1/2, where all logits are equal, is not allowed."""
        s = real_number(s, "s")
        if not 0 <= s <= 1 or s == 0.5:
            raise ThalwegError(f"the path has points for s from 0 to 1 except the origin, 1/2; got {s!r}")
        end, t = self.start if s < 0.5 else self.end, self.shrink(s)
        vector = end.vector.clone()
        for name, piece in end.layout.split(vector).items():
            piece.mul_(t ** self.powers[name])
        return Weights(end.layout, vector, end.buffers, end.frozen)
