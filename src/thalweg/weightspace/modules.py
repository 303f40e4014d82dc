"""Reading a module: its parameters, buffers and batch-norm layers, by the names they have without wrappers."""

from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def unwrapped(module: nn.Module) -> nn.Module:
    """The user's own module inside torch.compile and data-parallel wrappers."""
    while True:
        if compiled(module):
            module = module._orig_mod  # type: ignore[assignment]
        elif isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            module = module.module
        else:
            return module


def compiled(module: nn.Module) -> bool:
    """Whether it is torch.compile's wrapper, and not a network of the user's with a part of that name."""
    return "_orig_mod" in module._modules and type(module).__module__.startswith("torch.")


def named_parameters(module: nn.Module) -> tuple[dict[str, nn.Parameter], dict[str, str]]:
    """Parameters under their first name, and the further names of tied ones."""
    first: dict[int, str] = {}
    parameters: dict[str, nn.Parameter] = {}
    aliases: dict[str, str] = {}
    network = unwrapped(module)
    for name, parameter in network.named_parameters(remove_duplicate=False):
        name = _plain(name, network)
        if id(parameter) in first:
            aliases[name] = first[id(parameter)]
        else:
            first[id(parameter)] = name
            parameters[name] = parameter
    return parameters, aliases


def named_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The buffers that belong in a file; what a module marks as not persistent is no part of its weights."""
    network = unwrapped(module)
    for prefix, part in network.named_modules(remove_duplicate=False):
        for name, buffer in part._buffers.items():
            if buffer is not None and name not in part._non_persistent_buffers_set:
                yield _plain(f"{prefix}.{name}" if prefix else name, network), buffer


def batch_norms(module: nn.Module) -> Iterator[tuple[str, _BatchNorm]]:
    """The batch-norm layers that keep statistics."""
    network = unwrapped(module)
    for name, layer in network.named_modules(remove_duplicate=False):
        if isinstance(layer, _BatchNorm) and layer.track_running_stats and layer.running_mean is not None:
            yield _plain(name, network), layer


def named_statistics(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, layer in batch_norms(module):
        for key in STATISTICS:
            if layer._buffers.get(key) is not None:
                yield (f"{name}.{key}" if name else key), getattr(layer, key)


def _plain(name: str, network: nn.Module) -> str:
    """A name without the steps through torch.compile's wrappers."""
    if "_orig_mod" not in name:
        return name
    part, steps = network, []
    for step in name.split("."):
        if step != "_orig_mod" or not compiled(part):
            steps.append(step)
        part = part._modules.get(step, part)  # type: ignore[assignment]
    return ".".join(steps)
