"""Residual units one after another on a GPU, computed by our own kernels: the same as the modules up to rounding."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from ...errors import ThalwegError
from ...weightspace.batchnorm import StatisticsHook

PROGRAMS = 264  # two for each multiprocessor of an H100 or H200
COPIES = 8  # of sums, as in the kernels
PART = 64  # columns that a program computes at most
PATCH = 256  # columns of 3 x 3 patches that are multiplied at once
LARGEST = 2**31  # what kernels can count
WIDTHS = 16, 32, 64, 128, 256  # numbers of channels that they can divide into blocks

Layer = tuple[nn.BatchNorm2d, nn.Conv2d]


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


def computed(units: Sequence[Any], x: Tensor) -> Tensor:
    """What the units make of `x`."""
    stage = Stage(units, x)
    counters = [norm.num_batches_tracked for norm, _ in stage.layers if norm.num_batches_tracked is not None]
    if stage.training and counters:
        torch._foreach_add_(counters, 1)
    if torch.is_grad_enabled():
        return Units.apply(x, stage, *stage.parameters())
    for norm, _ in stage.layers:  # which may have been called before, and hold statistics that are wanted
        for hook in norm._forward_pre_hooks.values():
            hook(norm, (x,))
    inputs, *_, out = forward(stage, _flat(x), _pack([layer.weight for _, layer in stage.layers], x.dtype))
    for (norm, _), values in zip(stage.layers, inputs, strict=True):
        for after in norm._forward_hooks.values():
            after(norm, (_image(values, stage),), {}, None)
    return _image(out, stage)


class Units(torch.autograd.Function):
    """The same, with gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stage: "Stage", *parameters: Tensor) -> Tensor:
        weights = _pack(parameters[2::3], x.dtype)
        inputs, active, tables, out = forward(stage, _flat(x), weights)
        ctx.stage = stage
        ctx.save_for_backward(*inputs, *active, *tables, *weights)
        return _image(out, stage)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # torch.autograd.grad would leave out what comes through here, without an error
            raise ThalwegError(
                "the kernels of residual units have no second derivatives, which create_graph=True is for: compute in "
                "fp32, or call torch.use_deterministic_algorithms(True) before the forward pass"
            )
        saved, count = ctx.saved_tensors, len(ctx.stage.layers)
        kinds = (saved[start : start + count] for start in range(0, 4 * count, count))
        found, others = backward(ctx.stage, _flat(gradient), *kinds)
        return _image(found, ctx.stage), None, *others


class Stage:
    """The layers of several units one after another, and how their kernels are launched.

    Attributes:
        layers: Batch norms, and the convolutions after them.
        ends: Where the layers of each unit begin and end.
    """

    def __init__(self, units: Sequence[Any], x: Tensor):
        self.layers: list[Layer] = [layer for unit in units for layer in unit.layers]
        self.ends = [*pairwise([0, *accumulate(len(unit.layers) for unit in units)])]
        self.leak, self.training = units[0].leak, self.layers[0][0].training
        _, _, self.height, self.width = x.shape
        self.pixels, self.device = x.numel() // x.shape[1], x.device

    def parameters(self) -> Iterator[Tensor]:
        for norm, convolution in self.layers:
            yield from (norm.weight, norm.bias, convolution.weight)

    def rows(self, count: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        """`count` rows for the input of each layer, zeros in one piece of memory."""
        sizes = [count * norm.num_features for norm, _ in self.layers]
        return list(torch.zeros(sum(sizes), dtype=dtype, device=self.device).split(sizes))

    def sums(self) -> list[Tensor]:
        return self.rows(2 * COPIES, torch.float64)

    def normed(self, k: int, x: Tensor, tables: Sequence[Tensor], sums: Sequence[Tensor]) -> tuple[Any, ...]:
        """What kernels take of the input of a layer and its batch norm."""
        norm = self.layers[k][0]
        stored = norm.running_mean, norm.running_var, norm.momentum, norm.eps
        return x, tables[k], sums[k], norm.weight, norm.bias, *stored

    def elementwise(self, kernel: Any, *tensors: Any, channels: int, **constants: Any) -> None:
        block = max(4, 4096 // channels)
        grid = (min(2 * PROGRAMS, -(-self.pixels // block)),)
        kernel[grid](*tensors, self.pixels, INPUTS=channels, BLOCK=block, **constants)

    def convolve(
        self, kernel: Any, k: int, *tensors: Any, parts: int = 0, transposed: bool = False, **constants: Any
    ) -> None:
        """A kernel of a convolution: each program has every so many blocks of pixels, of some of the columns.

        Args:
            kernel: The kernel.
            k: The layer.
            tensors: Its arguments, but for the number of pixels, which is the last.
            parts: Into how many parts the columns are divided; by default as many as they need.
            transposed: Whether the columns are those of the input.
            constants: Some of its constants.
        """
        _, convolution = self.layers[k]
        inputs, outputs, taps = convolution.in_channels, convolution.out_channels, convolution.kernel_size[0] ** 2
        across, columns = (outputs, inputs) if transposed else (inputs, outputs)
        if not parts:
            constants["PART"] = min(columns, PART)
            parts = columns // constants["PART"]
        reads = taps == 1 and not transposed  # the sizes that were the fastest, of those that were tried on an H200
        block = 64 if reads or min(inputs, outputs) > 32 or (taps == 1 and inputs > outputs) else 128
        programs = max(1, PROGRAMS * (2 if reads else 1) // parts)
        kernel[min(programs, -(-self.pixels // block)), parts](
            *tensors,
            self.pixels,
            HEIGHT=self.height,
            WIDTH=self.width,
            INPUTS=inputs,
            OUTPUTS=outputs,
            WIDE=PATCH if taps > 1 else across,
            BLOCK=block,
            num_warps=2 if reads and inputs <= 128 else 4,
            num_stages=1,
            **constants,
        )


def forward(
    stage: Stage, x: Tensor, weights: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor], list[Tensor], Tensor]:
    """The input of each layer, what 3 x 3 convolutions take, the batch norms, and the output."""
    from . import residual_kernels as kernels

    tables, sums = stage.rows(4) if stage.training else [*_stored(stage)], stage.sums()
    mode = {"TRAINING": stage.training, "LEAK": stage.leak}
    inputs, active = list[Tensor](), list[Tensor]()
    with torch.cuda.device_of(x):
        if stage.training:
            stage.elementwise(kernels.add_up, x, sums[0], channels=x.shape[1])
        for start, stop in stage.ends:
            unit = x
            for k in range(start, stop):
                convolution, given = stage.layers[k][1], stage.normed(k, x, tables, sums)
                taps = convolution.kernel_size[0] ** 2
                inputs.append(x)
                active.append(torch.empty_like(x) if taps > 1 else x.new_empty(0))
                if taps > 1:
                    stage.elementwise(kernels.activate, *given, active[k], channels=x.shape[1], **mode)
                    given = active[k], *given[1:]
                x = x.new_empty(stage.pixels, convolution.out_channels)
                following = sums[min(k + 1, len(sums) - 1)]
                stage.convolve(
                    kernels.forward,
                    k,
                    *(*given, x, weights[k], unit, following),
                    TAPS=taps,
                    ADDED=k == stop - 1,
                    SUMMED=stage.training and k + 1 < len(sums),
                    **mode,
                )
    return inputs, active, tables, x


def backward(
    stage: Stage,
    gradient: Tensor,
    inputs: Sequence[Tensor],
    active: Sequence[Tensor],
    tables: Sequence[Tensor],
    weights: Sequence[Tensor],
) -> tuple[Tensor, list[Tensor]]:
    """The gradients of the input and of the parameters."""
    from . import residual_kernels as kernels

    sizes = [weight.numel() for weight in weights]
    changes = torch.zeros(sum(sizes), dtype=torch.float32, device=stage.device).split(sizes)
    sums, gains, biases = stage.sums(), stage.rows(1), stage.rows(1)
    for start, stop in reversed(stage.ends):
        slope = gradient
        for k in reversed(range(start, stop)):
            taps, normed, after = stage.layers[k][1].kernel_size[0] ** 2, k + 1 < stop, min(k + 1, stop - 1)
            following = inputs[after], tables[after], sums[after], gains[after], biases[after]
            if taps > 1:
                arriving = torch.empty_like(slope) if normed else slope
                parts = -(-sizes[k] // slope.shape[1] // PATCH)
                written = active[k], arriving, changes[k]
                stage.convolve(kernels.backward_weight, k, slope, *following, *written, parts=parts, NORMED=normed)
                slope = arriving
            arriving, slope = slope, torch.empty_like(inputs[k])
            given = inputs[k], tables[k], weights[k], slope, changes[k], sums[k]
            stage.convolve(
                kernels.backward,
                k,
                *(arriving, *following, *given),
                transposed=True,
                TAPS=taps,
                LEAK=stage.leak,
                NORMED=normed,
            )
        first = inputs[start], tables[start], sums[start], gains[start], biases[start]
        arriving, gradient = gradient, torch.empty_like(gradient)
        stage.elementwise(kernels.join, arriving, *first, slope, gradient, channels=gradient.shape[1])
    return gradient, [
        found
        for (_, layer), gain, bias, change in zip(stage.layers, gains, biases, changes, strict=True)
        for found in (gain, bias, change.view(layer.out_channels, *layer.kernel_size, -1).permute(0, 3, 1, 2))
    ]


def _stored(stage: Stage) -> Iterator[Tensor]:
    """Scale and shift of batch norms that use their stored statistics."""
    norms = [norm for norm, _ in stage.layers]
    inverses = torch._foreach_add([norm.get_buffer("running_var") for norm in norms], [norm.eps for norm in norms])
    torch._foreach_rsqrt_(inverses)
    scales = torch._foreach_mul([norm.weight for norm in norms], inverses)
    shifts = torch._foreach_mul([norm.get_buffer("running_mean") for norm in norms], scales)
    torch._foreach_neg_(shifts)
    torch._foreach_add_(shifts, [norm.bias for norm in norms])
    return (torch.cat(pair) for pair in zip(scales, shifts, strict=True))


def _pack(weights: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """(outputs, taps, inputs) each, in one piece of memory."""
    flat = torch.cat([weight.permute(0, 2, 3, 1).reshape(-1) for weight in weights]).to(dtype)
    return flat.split([weight.numel() for weight in weights])


def _flat(x: Tensor) -> Tensor:
    """(pixels, channels)."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1]).contiguous()


def _image(flat: Tensor, stage: Stage) -> Tensor:
    return flat.view(-1, stage.height, stage.width, flat.shape[1]).permute(0, 3, 1, 2)
