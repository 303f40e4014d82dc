"""Everything about a module that a call must leave as it was, as something that can be compared."""

from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, type)


def picture(value: Any, seen: set[int] | None = None) -> Any:
    """Values of tensors and plain attributes, identities of everything, through modules, containers and objects."""
    seen = set() if seen is None else seen
    if isinstance(value, PLAIN):
        return value
    if id(value) in seen:
        return id(value)
    seen.add(id(value))
    if isinstance(value, Tensor):
        return _tensor(value, seen)
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, torch.jit.ScriptModule):
        return (
            id(value),
            [(name, picture(t, seen)) for name, t in value.state_dict(keep_vars=True).items()],
            value.training,
        )
    if isinstance(value, dict):
        return id(value), [(picture(key, seen), picture(item, seen)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return id(value), [picture(item, seen) for item in value]
    if isinstance(value, partial):
        return id(value), picture(value.args, seen), picture(value.keywords, seen)
    if isinstance(value, FunctionType | BuiltinFunctionType | MethodType) or not hasattr(value, "__dict__"):
        return id(value)
    return (
        id(value),
        type(value),
        [(key, picture(item, seen)) for key, item in vars(value).items() if key != "dynamo_ctx"],
    )  # but for what is the compiler's own


def _tensor(tensor: Tensor, seen: set[int]) -> Any:
    meta = tensor.device.type == "meta" or isinstance(tensor, nn.parameter.UninitializedTensorMixin)
    form = () if meta else (tensor.data_ptr(), tensor.shape, tensor.stride(), _bytes(tensor))
    hooks = len(tensor._backward_hooks or ()), len(getattr(tensor, "_post_accumulate_grad_hooks", None) or ())
    grad = None if not tensor.is_leaf or tensor.grad is None else (id(tensor.grad), _bytes(tensor.grad))
    return id(tensor), tensor.dtype, tensor.requires_grad, form, hooks, grad, picture(vars(tensor), seen)


def _bytes(tensor: Tensor) -> bytes:
    if tensor.device.type == "meta":
        return b""
    dense = tensor.to_dense() if tensor.is_sparse else tensor.detach()
    return dense.resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
