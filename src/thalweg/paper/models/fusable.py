"""When residual units can be computed by our own kernels: where the modules would compute the same."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from ...weightspace.batchnorm import StatisticsHook

LARGEST = 2**31  # what kernels can count
WIDTHS = 16, 32, 64, 128, 256  # numbers of channels that they can divide into blocks


def applicable(units: Sequence[Any], x: Tensor) -> bool:
    """Whether the kernels compute what the modules would: on a GPU in bfloat16, with nothing attached to the modules
    but, without gradients, the hooks of our passes for batch-norm statistics.
    """
    if not (x.is_cuda and x.dtype == torch.bfloat16 and _autocast() and x.shape[1] < x.numel() < LARGEST):
        return False
    if torch.are_deterministic_algorithms_enabled() or torch.jit._trace.is_tracing() or _operations_matter():
        return False
    layers = [layer for unit in units for layer in unit.layers]
    if not all(_norm_as_made(norm) and _convolution_as_made(convolution) for norm, convolution in layers):
        return False
    if not (all(map(_untouched, (part for unit in units for part in unit.modules()))) and _alike(units)):
        return False
    return _connected(units, x.shape[1]) and _buildable()


def _autocast() -> bool:
    return torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16


def _operations_matter() -> bool:
    """Whether something follows each module or operation, such as a proof of ours, or transforms it, such as vmap."""
    followed = nn.modules.module._has_any_global_hook() or torch._C._len_torch_dispatch_stack() > 0
    return followed or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def _norm_as_made(norm: nn.Module) -> bool:
    if type(norm) is not nn.BatchNorm2d or norm.momentum is None or not norm.track_running_stats:
        return False
    tensors: tuple[Any, ...] = norm.weight, norm.bias, norm.running_mean, norm.running_var
    return all(_plain(tensor, norm.num_features) and tensor.is_contiguous() for tensor in tensors)


def _plain(tensor: Any, *shape: int) -> bool:
    return type(tensor) in (Tensor, nn.Parameter) and tensor.dtype == torch.float32 and tensor.shape == shape


def _convolution_as_made(layer: nn.Module) -> bool:
    if type(layer) is not nn.Conv2d or layer.kernel_size not in ((1, 1), (3, 3)):
        return False
    same = layer.stride == layer.dilation == (1, 1) and layer.padding == (layer.kernel_size[0] // 2,) * 2
    same = same and layer.groups == 1 and layer.padding_mode == "zeros" and layer.bias is None
    return same and _plain(layer.weight, layer.out_channels, layer.in_channels, *layer.kernel_size)


def _untouched(part: nn.Module) -> bool:
    hooks = [hook for name, hooks in vars(part).items() if name.endswith("_hooks") for hook in hooks.values()]
    observed = all(isinstance(hook, StatisticsHook) for hook in hooks) and not torch.is_grad_enabled()
    return "forward" not in vars(part) and (observed or not hooks)


def _alike(units: Sequence[Any]) -> bool:
    """Whether all are in training or, without gradients, in eval mode."""
    modes = {norm.training for unit in units for norm, _ in unit.layers}
    return len({unit.leak for unit in units}) == len(modes) == 1 and (all(modes) or not torch.is_grad_enabled())


def _connected(units: Sequence[Any], channels: int) -> bool:
    """Whether each layer takes what the one before gives, once, and each unit adds to its input what it makes of it."""
    for unit in units:
        arriving = channels
        for norm, convolution in unit.layers:
            if not norm.num_features == convolution.in_channels == arriving or arriving not in WIDTHS:
                return False
            arriving = convolution.out_channels
        if arriving != channels or unit.shared:
            return False
    norms = [norm for unit in units for norm, _ in unit.layers]
    return len(set(norms)) == len(norms)


def _buildable() -> bool:
    from ...runtime.fused import kernels

    return kernels() is not None
