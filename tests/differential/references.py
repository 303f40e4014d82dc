"""Kinds whose forward pass reaches its weights on a way of its own: lists, closures, hooks, own copies."""

import weakref
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from differential.kind import Normed, kind
from torch import Tensor, nn
from torch.nn import functional as F


@kind("plain_list_of_weights")
class ListOfWeights(Normed):
    def __init__(self) -> None:
        super().__init__()
        self.weights = [self.first.weight, self.first.bias]

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.linear(x, *self.weights).tanh())


@kind("plain_list_of_layers", refused="unregistered")
class ListOfLayers(Normed):
    """Layers that torch does not know of, so that no optimizer would move them."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [nn.Linear(8, 8)]

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.hidden[0](self.first(x).tanh()).tanh())


@kind("plain_dict_of_registered_layers")
class DictOfLayers(Normed):
    def __init__(self) -> None:
        super().__init__()
        self.by_name = {"first": self.first, "last": self.last}

    def forward(self, x: Tensor) -> Tensor:
        return self.by_name["last"](self.by_name["first"](x).tanh())


@kind("lambda_over_self", refused="closure")
class Lambda(Normed):
    def __init__(self) -> None:
        super().__init__()
        self.project = lambda x: self.first(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.project(x).tanh())


@kind("weak_reference_to_the_parent")
class WeakParent(Normed):
    class Child(nn.Module):
        def __init__(self, parent: nn.Module) -> None:
            super().__init__()
            self.parent = weakref.ref(parent)

        def forward(self, x: Tensor) -> Tensor:
            return self.parent().first(x)

    def __init__(self) -> None:
        super().__init__()
        self.child = self.Child(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.child(x).tanh())


@kind("strong_reference_to_the_parent")
class StrongParent(Normed):
    class Child(nn.Module):
        def __init__(self, parent: nn.Module) -> None:
            super().__init__()
            object.__setattr__(self, "parent", parent)

        def forward(self, x: Tensor) -> Tensor:
            return self.parent.first(x)

    def __init__(self) -> None:
        super().__init__()
        self.child = self.Child(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.child(x).tanh())


@kind("bound_method_kept")
class Bound(Normed):
    def __init__(self) -> None:
        super().__init__()
        self.project = self._project

    def _project(self, x: Tensor) -> Tensor:
        return self.first(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.project(x).tanh())


@kind("forward_replaced", refused="closure")
def replaced() -> nn.Module:
    module = Normed()
    original = module.forward
    module.forward = lambda x: 2 * original(x)
    return module


@kind("forward_of_one_layer_replaced", refused="closure")
def layer_replaced() -> nn.Module:
    module = Normed()
    original = module.first.forward
    module.first.forward = lambda x: 2 * original(x)
    return module


@kind("forward_replaced_by_a_bound_method")
def layer_bound() -> nn.Module:
    module = Normed()
    module.forward = partial(Normed.forward, module)
    return module


@kind("closure_over_a_parameter", refused="closure")
class Closure(Normed):
    def __init__(self) -> None:
        super().__init__()
        weight = self.first.weight

        def project(x: Tensor) -> Tensor:
            return F.linear(x, weight)

        self.project = project

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.project(x).tanh())


@kind("default_argument_over_a_parameter", refused="closure")
class DefaultArgument(Normed):
    def __init__(self) -> None:
        super().__init__()
        self.project = lambda x, weight=self.first.weight: F.linear(x, weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.project(x).tanh())


@kind("partial_over_a_parameter")
class Partial(Normed):
    def __init__(self) -> None:
        super().__init__()
        self.project = partial(F.linear, weight=self.first.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.project(x).tanh())


@kind("property_that_gives_a_parameter")
class Property(Normed):
    @property
    def kernel(self) -> Tensor:
        return self.first.weight * 2

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.linear(x, self.kernel).tanh())


@kind("helper_object_with_parameters")
class Helped(Normed):
    def __init__(self) -> None:
        super().__init__()
        self.helper = SimpleNamespace(weight=self.first.weight, layer=self.last)

    def forward(self, x: Tensor) -> Tensor:
        return self.helper.layer(F.linear(x, self.helper.weight).tanh())


LAYERS_OF_EVERYBODY: dict[int, nn.Module] = {}


@kind("registry_outside_the_module", refused="outside")
class Registered(Normed):
    """Looks its layer up in a table of the program, by a number that a copy keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.number = len(LAYERS_OF_EVERYBODY)
        LAYERS_OF_EVERYBODY[self.number] = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self.last(LAYERS_OF_EVERYBODY[self.number](x).tanh())


@kind("stores_itself")
class Ouroboros(Normed):
    def __init__(self) -> None:
        super().__init__()
        self.all = [self]

    def forward(self, x: Tensor) -> Tensor:
        return super(Ouroboros, self.all[0]).forward(x)


@kind("slots", refused="copy")
class Slotted(Normed):
    __slots__ = ("factor",)

    def __init__(self) -> None:
        super().__init__()
        self.factor = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.factor


@kind("forward_hook")
def hooked() -> nn.Module:
    module = Normed()
    module.first.register_forward_hook(lambda layer, inputs, output: output * 2 + layer.bias)
    return module


@kind("forward_hook_over_the_module", refused="closure")
def hooked_over() -> nn.Module:
    module = Normed()
    module.first.register_forward_hook(lambda layer, inputs, output: output + module.first.bias)
    return module


@kind("forward_pre_hook")
def pre_hooked() -> nn.Module:
    module = Normed()
    module.last.register_forward_pre_hook(lambda layer, inputs: (inputs[0] * 3,))
    return module


@kind("full_backward_hook")
def backward_hooked() -> nn.Module:
    module = Normed()
    module.last.register_full_backward_hook(lambda layer, ingoing, outgoing: (ingoing[0] * 2,))
    return module


@kind("tensor_hook")
def tensor_hooked() -> nn.Module:
    module = Normed()
    module.first.weight.register_hook(lambda gradient: gradient * 3)
    return module


def double(parameter: Tensor) -> None:
    parameter.grad.mul_(2)


@kind("post_accumulate_hook")
def accumulated() -> nn.Module:
    module = Normed()
    module.first.weight.register_post_accumulate_grad_hook(double)
    return module


@kind("own_deepcopy_right")
class CopiesRight(Normed):
    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        twin = type(self)().double()
        memo[id(self)] = twin
        twin.load_state_dict(self.state_dict())
        return twin


@kind("own_deepcopy_sharing", refused="deepcopy")
class CopiesSharing(Normed):
    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        twin = type(self)().double()
        twin.first = self.first
        return twin


@kind("own_deepcopy_itself", refused="deepcopy")
class CopiesItself(Normed):
    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        return self


@kind("own_deepcopy_fresh")
class CopiesFresh(Normed):
    """Made anew with other weights, as a module that holds a connection or a lock may do."""

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        return type(self)().double()


@kind("part_with_a_deepcopy_of_its_own", refused="deepcopy")
class PartSharing(Normed):
    def __init__(self) -> None:
        super().__init__()
        self.middle = CopiesItself()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.middle(x)


@kind("cannot_be_copied", refused="deepcopy")
class Uncopyable(Normed):
    def __init__(self) -> None:
        super().__init__()
        self.stream = (i for i in range(3))


@kind("data_replaced_in_forward", refused="replaced")
class ReplacesData(Normed):
    def forward(self, x: Tensor) -> Tensor:
        self.first.weight.data = self.first.weight.data.clamp(-0.3, 0.3)
        return super().forward(x)


@kind("data_written_in_forward")
class WritesData(Normed):
    """A constraint enforced in forward, as weight clipping of old."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.first.weight.copy_(self.first.weight.clamp(-0.3, 0.3))
        return super().forward(x)


@kind("parameter_replaced_in_forward", refused="replaced")
class ReplacesParameter(Normed):
    def forward(self, x: Tensor) -> Tensor:
        self.first.weight = nn.Parameter(self.first.weight.detach() * 1.0)
        return super().forward(x)


@kind("layer_made_in_the_first_forward", refused="late")
class MadeLate(Normed):
    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "late"):
            self.late = nn.Linear(3, 3, dtype=x.dtype)
        return self.late(super().forward(x))


@kind("numpy_view_of_a_parameter", refused="memory")
class NumpyView(Normed):
    def __init__(self) -> None:
        super().__init__()
        self.seen = self.first.bias.detach().numpy()[1:]

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).tanh()) + torch.from_numpy(self.seen).sum()


@kind("numpy_array_that_became_a_parameter", refused="memory")
class FromNumpy(Normed):
    def __init__(self) -> None:
        super().__init__()
        self.table = self.first.weight.detach().numpy().repeat(2, axis=0)
        self.first.weight = nn.Parameter(torch.from_numpy(self.table)[8:])
