"""Kinds that differ in their parameters and buffers: tied, frozen, odd shapes, shared memory, precision."""

from collections.abc import Iterator

import torch
from differential.kind import Base, head, kind, shaped, tanh_mlp, tokens
from torch import Tensor, nn
from torch.nn import functional as F


@kind("tied", batches=tokens)
class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.decoder, self.head = nn.Embedding(7, 5), nn.Linear(5, 7, bias=False), head(7)
        self.decoder.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.decoder(self.embedding(x).mean(1)))


@kind("tied_transposed")
class TiedTransposed(Base):
    def forward(self, x: Tensor) -> Tensor:
        code = self.first(x).tanh()
        return self.last(F.linear(F.linear(code, self.first.weight.t()), self.first.weight).tanh())


@kind("tied_by_a_second_parameter", refused="memory")
def tied_badly() -> nn.Module:
    one, two = nn.Linear(4, 4), nn.Linear(4, 4)
    two.weight = nn.Parameter(one.weight.t())
    return nn.Sequential(one, nn.Tanh(), two, head(4))


@kind("frozen_part")
def frozen() -> nn.Module:
    module = tanh_mlp()
    with torch.no_grad():
        module[0].weight.copy_(torch.linspace(-1, 1, 32).reshape(8, 4))
    module[0].weight.requires_grad_(False)
    return module


@kind("frozen_differently", refused={"connect": "frozen", "scan": "frozen", "bn_batches": "frozen"})
def frozen_differently() -> nn.Module:
    module = tanh_mlp()
    module[0].weight.requires_grad_(False)
    return module


@kind("all_but_one_frozen")
def one_moves() -> nn.Module:
    module = tanh_mlp()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape))
    module.requires_grad_(False)
    module[2].bias = nn.Parameter(torch.randn(3))
    return module


@kind("all_frozen", refused="frozen")
def all_frozen() -> nn.Module:
    return tanh_mlp().requires_grad_(False)


@kind("parameters_of_its_own", refused="parameters")
class OwnParameters(Base):
    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        return self.last.parameters(recurse)


@kind("no_parameters", refused="empty")
def empty() -> nn.Module:
    return nn.Flatten()


class Buffered(Base):
    """A constant buffer that the output depends on."""

    constant: Tensor

    def __init__(self, constant: Tensor) -> None:
        super().__init__()
        self.register_buffer("constant", constant)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.constant.abs().to(x.dtype)


kind("complex_buffer")(lambda: Buffered(torch.tensor([1 + 2j, 2.0, 0.5j], dtype=torch.complex128)))
kind("integer_buffer")(lambda: Buffered(torch.tensor([1, 2, 3])))
kind("empty_buffer")(lambda: Buffered(torch.ones(1)[:, None][:0].sum()))
kind("buffer_of_float32")(lambda: Buffered(torch.full((3,), 0.3, dtype=torch.float32)))


@kind("boolean_buffer")
class Masked(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([True, False, True, True]))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.masked_fill(~self.mask, 0.0))


@kind("complex_parameter", refused="complex")
class Complex(Base):
    def __init__(self) -> None:
        super().__init__()
        self.phase = nn.Parameter(torch.randn(3, dtype=torch.complex128))

    def forward(self, x: Tensor) -> Tensor:
        return (super().forward(x) * self.phase).real


@kind("parameter_list_and_dict")
class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.randn(8, 4), torch.randn(3, 8)])
        self.biases = nn.ParameterDict({"one": torch.randn(8), "two": torch.randn(3)})

    def forward(self, x: Tensor) -> Tensor:
        x = F.linear(x, self.weights[0], self.biases["one"]).tanh()
        return F.linear(x, self.weights[1], self.biases["two"])


@kind("one_layer_in_two_places")
def nested() -> nn.Module:
    shared = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    return nn.Sequential(shared, nn.Sequential(shared, nn.Linear(4, 4)), shared, head(4))


@kind("siamese", batches=shaped(2, 4))
class Siamese(Base):
    def forward(self, x: Tensor) -> Tensor:
        one, two = x.unbind(1)
        return self.last((self.first(one) - self.first(two)).abs())


@kind("experts_of_which_some_rest")
class Experts(Base):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(4, 3) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.experts[int(x.sum() > 0)](x)


@kind("branch_by_the_data")
class Branching(Base):
    def forward(self, x: Tensor) -> Tensor:
        rows = [self.last(self.first(row).tanh()) if row[0] > 0 else -self.last(self.first(row)) for row in x]
        return torch.stack(rows)


@kind("early_exit")
class EarlyExit(Base):
    def __init__(self) -> None:
        super().__init__()
        self.exit = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).tanh()
        return self.exit(hidden) if hidden.mean() > 0.05 else self.last(hidden)


@kind("scalar_parameter")
class Scaled(Base):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(()) + 2)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


@kind("parameter_without_elements")
class ZeroSize(Base):
    def __init__(self) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.empty(0, 3))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.nothing.sum(0)


@kind("expanded_parameter", refused="memory")
class Expanded(Base):
    """All four elements are one in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.randn(1).expand(4))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * self.gain)


@kind("parameter_not_contiguous")
def transposed() -> nn.Module:
    module = tanh_mlp()
    module[0].weight = nn.Parameter(torch.randn(4, 8).t())
    module[2].weight = nn.Parameter(torch.randn(3, 16)[:, ::2])
    return module


@kind("parameter_and_buffer_on_one_memory", refused="memory")
class BesideBuffer(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("twin", self.first.weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + (x @ self.twin.t())[:, :3]


@kind("parameter_and_attribute_on_one_memory")
class BesideAttribute(Base):
    def __init__(self) -> None:
        super().__init__()
        self.twin = self.first.weight.data

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + (x @ self.twin.t())[:, :3]


@kind("parameters_in_one_vector", refused={})
class Flat(Base):
    """As after fully sharded training or flattening: neighbours in one memory that do not overlap."""

    def __init__(self) -> None:
        super().__init__()
        flat = torch.randn(8 * 4 + 8)
        self.first.weight, self.first.bias = nn.Parameter(flat[:32].view(8, 4)), nn.Parameter(flat[32:])


kind("float32", dtype=torch.float32, tolerance=2e-5, batches=lambda: [(x.float(), y) for x, y in shaped(4)()])(tanh_mlp)


@kind("bfloat16", dtype=torch.bfloat16, tolerance=0.06, batches=lambda: [(x.bfloat16(), y) for x, y in shaped(4)()])
def bfloat16() -> nn.Module:
    return tanh_mlp()


@kind("half", dtype=torch.float16, tolerance=0.02, batches=lambda: [(x.half(), y) for x, y in shaped(4)()])
def half() -> nn.Module:
    return tanh_mlp()


@kind("mixed_precision_parameters", refused="dtype")
class Mixed(Base):
    def __init__(self) -> None:
        super().__init__()
        self.first.float()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x.float()).tanh().double())


@kind("mixed_precision_frozen")
class MixedFrozen(Base):
    """A frozen part may be of another precision."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8).float().requires_grad_(False)
        with torch.no_grad():
            for parameter in self.first.parameters():
                parameter.copy_(torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x.float()).tanh().double())


class Named(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.add_module(name, nn.Linear(4, 8))
        self.last = head()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self._modules[self.name](x).tanh())


kind("submodule_named_module")(lambda: Named("module"))
kind("submodule_named_model")(lambda: Named("model"))
kind("submodule_named_orig_mod")(lambda: Named("_orig_mod"))
kind("submodule_with_an_odd_name")(lambda: Named("läyer <b> 1/2"))


@kind("meta_parameters", refused="meta")
def meta() -> nn.Module:
    return tanh_mlp().to("meta")
