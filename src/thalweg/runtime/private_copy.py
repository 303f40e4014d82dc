"""The private copy of a network: deep, compiled as the original is; what shares memory with a parameter still does."""

import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..batches import tensors_in
from ..errors import ThalwegError, first_line
from ..weightspace.layout import named_parameters, overrides_train, span, unwrapped, user_compiled, wrappers
from ..weightspace.state import Contents, plain, preserved
from .recompiled import recompiled


def private_copy(
    module: nn.Module, memo: dict[int, Any], frozen: Mapping[str, nn.Parameter]
) -> tuple[nn.Module, dict[str, nn.Parameter]]:
    """A deep copy, compiled as the original is; tensors left by a forward pass are copied as plain values, those that
    share memory with a parameter follow it, and weak references refer to parts of the copy.

    Args:
        module: The network.
        memo: What single objects become in the copy.
        frozen: Parameters, by name, that may lie in the memory of the original's, unless `train()` or `eval()` of the
            network writes to parameters, as loralib's does.

    Returns:
        The copy, and its parameters that do.
    """
    copy, shared = _copied(module, dict(memo), frozen)
    if shared and overrides_train(copy) and _writes_in_train(copy):
        return _copied(module, memo, {})
    return copy, shared


class Written(Exception):
    """A parameter would be written to whose memory may be that of the original network's."""


def written_to(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The arguments that an operation writes to."""
    schema = getattr(function, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    given = {**dict(zip((spec.name for spec in schema.arguments), args, strict=False)), **kwargs}
    writes = (spec.name for spec in schema.arguments if spec.alias_info is not None and spec.alias_info.is_write)
    return tensors_in([given.get(name) for name in writes])


class _ReadOnly(TorchDispatchMode):
    """Raises `Written` instead of writing to a parameter."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.storages = {p.untyped_storage().data_ptr() for p in network.parameters() if plain(p)}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        written = filter(plain, written_to(function, args, kwargs or {}))
        if any(tensor.untyped_storage().data_ptr() in self.storages for tensor in written):
            raise Written
        return function(*args, **(kwargs or {}))


def _writes_in_train(network: nn.Module) -> bool:
    """Whether a change of mode writes to parameters, or fails."""
    try:
        with preserved(network), _ReadOnly(network):
            for mode in (True, False, True):
                network.train(mode)
    except Exception:  # any exception, since the method is the user's own
        return True
    return False


def _copied(
    module: nn.Module, memo: dict[int, Any], frozen: Mapping[str, nn.Parameter]
) -> tuple[nn.Module, dict[str, nn.Parameter]]:
    network = unwrapped(module)
    contents = Contents(network)
    shared = _shared(frozen, contents)
    memo.update((id(frozen[name]), new) for name, new in shared.items())
    try:
        _follow(network, contents, memo)
        for part in filter(user_compiled, [*network.modules()][:0:-1]):  # inner ones first
            memo[id(part)] = recompiled(part, deepcopy(unwrapped(part), memo), part=True)
        copy = deepcopy(network, memo)
    except (ThalwegError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # any exception, since its own __deepcopy__ or __reduce__ may fail
        raise ThalwegError(
            f"the network must be copyable with copy.deepcopy, and {type(network).__name__} is not "
            f"({first_line(error)}): take what cannot be copied out of it, or give it a __deepcopy__"
        ) from error
    held = [item for _, found in contents.held for item in (found.values() if isinstance(found, dict) else found)]
    for container, _ in Contents(copy).held if any(isinstance(item, weakref.ref) for item in held) else ():
        _redirect_references(container, memo)
    wrapper = next(filter(user_compiled, wrappers(module)), None)
    return (copy if wrapper is None else recompiled(wrapper, copy, part=False)), shared


def _shared(frozen: Mapping[str, nn.Parameter], contents: Contents) -> dict[str, nn.Parameter]:
    """Parameters in the memory of those given, where nothing else lies in it."""
    held = {tensor.untyped_storage().data_ptr() for tensor in contents.tensors.values() if plain(tensor)}
    found = {}
    for name, old in frozen.items():
        storage = old.untyped_storage() if plain(old) else None
        if storage is not None and storage.nbytes() == old.nbytes and storage.data_ptr() not in held:
            found[name] = nn.Parameter(old.detach(), requires_grad=False)
            found[name].__dict__.update(old.__dict__)
    return found


def _follow(module: nn.Module, contents: Contents, memo: dict[int, Any]) -> None:
    """What happens in the copy to tensors that are not parameters but results, or share memory with a parameter."""
    parameters = named_parameters(module)
    homes: dict[int, list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in parameters.items():
        if plain(parameter):
            homes.setdefault(parameter.untyped_storage().data_ptr(), []).append((name, parameter))
    for path, tensor in contents.tensors.items():
        near = homes.get(tensor.untyped_storage().data_ptr(), []) if plain(tensor) and tensor.numel() else []
        near = [
            (name, parameter)
            for name, parameter in near
            if span(parameter)[0] < span(tensor)[1] and span(tensor)[0] < span(parameter)[1]
        ]
        if near:
            memo[id(tensor)] = _view_of_parameter(path, tensor, *near[0], memo)
        elif not tensor.is_leaf:
            memo[id(tensor)] = tensor.detach().clone()
    for name, parameter in parameters.items() if contents.arrays else ():
        first, last = span(parameter) if plain(parameter) else (0, 0)
        if any(first - array.nbytes < array.__array_interface__["data"][0] < last for array in contents.arrays):
            raise ThalwegError(
                f"a numpy array in the network shares memory with the parameter '{name}', and cannot follow it when it "
                "moves: recreate it in every forward pass, or copy() it"
            )
    held = [item for part in module.modules() for item in vars(part).values() if type(item) in (OrderedDict, set)]
    memo.update((id(item), type(item)()) for item in held if not item)  # hooks, which take long to copy one by one


def _view_of_parameter(path: str, tensor: Tensor, name: str, parameter: nn.Parameter, memo: dict[int, Any]) -> Tensor:
    twin = deepcopy(parameter, memo)
    inside = span(parameter)[0] <= span(tensor)[0] and span(tensor)[1] <= span(parameter)[1]
    if not inside or tensor.dtype != parameter.dtype or twin.stride() != parameter.stride():
        raise ThalwegError(
            f"'{path}' shares memory with the parameter '{name}' and cannot follow it when it moves: recreate it in "
            "every forward pass, or clone() it"
        )
    base = twin.detach() if tensor.is_leaf else twin
    offset = twin.storage_offset() + tensor.storage_offset() - parameter.storage_offset()
    return base.as_strided(tensor.shape, tensor.stride(), offset)


def _redirect_references(container: Any, memo: dict[int, Any]) -> None:
    """Weak references to parts of the original become references to those of the copy."""
    if not isinstance(container, dict | list):
        return
    for key, item in [*container.items()] if isinstance(container, dict) else [*enumerate(container)]:
        if isinstance(item, weakref.ReferenceType) and id(item()) in memo:
            container[key] = weakref.ref(memo[id(item())])
