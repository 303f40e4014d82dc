"""The initialisation of the paper's networks."""

from math import sqrt

from torch import nn


def he_by_outputs(network: nn.Sequential) -> nn.Sequential:
    """Initialise convolutions as N(0, 2 / (k k out)) with zero biases, batch norm as 1 and 0; returns the network."""
    for part in network.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.normal_(part.weight, 0.0, sqrt(2 / (part.kernel_size[0] * part.kernel_size[1] * part.out_channels)))
            if part.bias is not None:
                nn.init.zeros_(part.bias)
    return network


def scaled_by_inputs(network: nn.Sequential) -> nn.Sequential:
    """Initialise convolutions as N(0, 1 / (k k in)), truncated at two standard deviations; returns the network."""
    for part in network.modules():
        if isinstance(part, nn.Conv2d):
            deviation = 1 / sqrt(part.kernel_size[0] * part.kernel_size[1] * part.in_channels)
            nn.init.trunc_normal_(part.weight, 0.0, deviation, -2 * deviation, 2 * deviation)
    return network
