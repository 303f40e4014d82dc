"""Residual units one after another on a GPU, computed by our own kernels: the same as the modules up to rounding."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import ThalwegError

PROGRAMS = 264  # two for each multiprocessor of an H100 or H200
COPIES = 8  # of sums, as in the kernels
PART = 64  # columns that a program computes at most
PATCH = 256  # columns of 3 x 3 patches that are multiplied at once

Layer = tuple[nn.BatchNorm2d, nn.Conv2d]


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
