"""Reading a module: its parameters, buffers and batch-norm layers, by the names they have without wrappers."""

from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def unwrapped(module: nn.Module) -> nn.Module:
    """The user's own module inside torch.compile and data-parallel wrappers."""
    while True:
        if hasattr(module, "_orig_mod"):
            module = module._orig_mod  # type: ignore[assignment]
        elif isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            module = module.module
        else:
            return module


def named_parameters(module: nn.Module) -> tuple[dict[str, nn.Parameter], dict[str, str]]:
    """Parameters under their first name, and the further names of tied ones."""
    first: dict[int, str] = {}
    parameters: dict[str, nn.Parameter] = {}
    aliases: dict[str, str] = {}
    for name, parameter in unwrapped(module).named_parameters(remove_duplicate=False):
        name = _plain(name)
        if id(parameter) in first:
            aliases[name] = first[id(parameter)]
        else:
            first[id(parameter)] = name
            parameters[name] = parameter
    return parameters, aliases


def named_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The buffers that belong in a file; what a module marks as not persistent is no part of its weights."""
    for prefix, part in unwrapped(module).named_modules(remove_duplicate=False):
        for name, buffer in part._buffers.items():
            if buffer is not None and name not in part._non_persistent_buffers_set:
                yield _plain(f"{prefix}.{name}" if prefix else name), buffer


def batch_norms(module: nn.Module) -> Iterator[tuple[str, _BatchNorm]]:
    """The batch-norm layers that keep statistics."""
    for name, layer in unwrapped(module).named_modules(remove_duplicate=False):
        if isinstance(layer, _BatchNorm) and layer.track_running_stats and layer.running_mean is not None:
            yield _plain(name), layer


def named_statistics(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, layer in batch_norms(module):
        for key in STATISTICS:
            if layer._buffers.get(key) is not None:
                yield (f"{name}.{key}" if name else key), getattr(layer, key)


def _plain(name: str) -> str:
    return name.replace("_orig_mod.", "")
