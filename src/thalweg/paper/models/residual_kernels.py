"""Triton kernels for residual units of narrow convolutions, each after batch norm and ReLU: what such networks spend
their time on is memory, so batch norm and ReLU are computed on the way into 1 x 1 convolutions, and sums over the batch
on the way out of all.

Activations are (pixels, channels), weights (outputs, taps, inputs), where a tap is one of 9 pixels, or the only one. A
batch norm is `table`, four rows of float32: scale, shift, mean, and one over the deviation. What needs it computes it
from `sums`, of its input and of its square; what needs the gradient of its input, from those of the gradient of its
output and of its product with the input. Programs add both up in float64, where their order hardly ever shows.
"""

import triton
import triton.language as tl

COPIES = tl.constexpr(8)  # of the sums, since programs that add to the same numbers wait for each other


@triton.jit
def _rows(values, rows, size, column, COUNT: tl.constexpr):  # noqa: N803
    return tl.load(values + rows[:, None] * COUNT + column[None, :], (rows < size)[:, None], 0.0)


@triton.jit
def _store(values, rows, size, column, result, COUNT: tl.constexpr):  # noqa: N803
    place = values + rows[:, None] * COUNT + column[None, :]
    tl.store(place, result.to(values.dtype.element_ty), (rows < size)[:, None])


@triton.jit
def _patches(
    values, rows, size, group,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, COUNT: tl.constexpr, TAPS: tl.constexpr, WIDE: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """What some of the taps read, in WIDE columns: tap after tap, COUNT channels each; zero outside of the image."""
    column = tl.arange(0, WIDE)
    tap = group * (WIDE // COUNT) + column // COUNT
    down, right = tap // 3 - 1, tap % 3 - 1
    row, line = (rows // WIDTH % HEIGHT)[:, None] + down[None, :], (rows % WIDTH)[:, None] + right[None, :]
    inside = (rows < size)[:, None] & (tap < TAPS)[None, :]
    inside &= (row >= 0) & (row < HEIGHT) & (line >= 0) & (line < WIDTH)
    place = (rows[:, None] + (down * WIDTH + right)[None, :]) * COUNT + (column % COUNT)[None, :]
    return tl.load(values + place, inside, 0.0)


@triton.jit
def _add(sums, first, second, column, COUNT: tl.constexpr):  # noqa: N803
    """Two sums of this program to one of the copies."""
    own = sums + tl.program_id(0) % COPIES * 2 * COUNT + column
    tl.atomic_add(own, first.to(tl.float64), sem="relaxed")
    tl.atomic_add(own + COUNT, second.to(tl.float64), sem="relaxed")


@triton.jit
def _total(sums, COUNT: tl.constexpr):  # noqa: N803
    """Both sums of all programs."""
    place = sums + tl.arange(0, COPIES)[:, None] * 2 * COUNT + tl.arange(0, COUNT)[None, :]
    return tl.sum(tl.load(place), 0), tl.sum(tl.load(place + COUNT), 0)


@triton.jit
def _norm(
    table, sums, gain, bias, running_mean, running_variance, momentum, eps, size,
    COUNT: tl.constexpr, TRAINING: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Scale and shift of a batch norm: from sums, which the first program also writes down, or as they are."""
    column = tl.arange(0, COUNT)
    if TRAINING:
        first, second = _total(sums, COUNT)
        exact = first / size
        squared = second / size - exact * exact
        variance = tl.where(squared < 0, 0.0, squared).to(tl.float32)  # a maximum would not keep NaN
        mean, inverse = exact.to(tl.float32), tl.rsqrt(variance + eps)
        scale = tl.load(gain + column) * inverse
        shift = tl.load(bias + column) - mean * scale
        if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
            tl.store(table + column, scale)
            tl.store(table + COUNT + column, shift)
            tl.store(table + 2 * COUNT + column, mean)
            tl.store(table + 3 * COUNT + column, inverse)
            kept = (1 - momentum) * tl.load(running_mean + column)  # with momentum 1 nothing, not even its rounding
            tl.store(running_mean + column, kept + momentum * mean)
            kept = (1 - momentum) * tl.load(running_variance + column)
            tl.store(running_variance + column, kept + momentum * (variance * size / (size - 1)))
    else:
        scale, shift = tl.load(table + column), tl.load(table + COUNT + column)
    return scale, shift


@triton.jit
def _back(table, sums, size, gain_gradient, bias_gradient, COUNT: tl.constexpr):  # noqa: N803
    """The gradient of a batch norm's input: factors of that of its output and of the input, and a constant. The first
    program writes down those of gain and bias.
    """
    column = tl.arange(0, COUNT)
    scale, mean = tl.load(table + column), tl.load(table + 2 * COUNT + column)
    inverse = tl.load(table + 3 * COUNT + column)
    first, product = _total(sums, COUNT)
    second = ((product - mean * first) * inverse).to(tl.float32)
    first = first.to(tl.float32)
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(bias_gradient + column, first)
        tl.store(gain_gradient + column, second)
    return scale, -scale * inverse * second / size, scale * (inverse * mean * second - first) / size


@triton.jit
def _through(slope, output, a, b, c, rows, size, column, COUNT: tl.constexpr):  # noqa: N803
    """The gradient of a batch norm's input, by the three numbers of each channel that `_back` gives."""
    values = _rows(output, rows, size, column, COUNT).to(tl.float32)
    through = slope.to(tl.float32) * a[None, :] + values * b[None, :] + c[None, :]
    return tl.where((rows < size)[:, None], through, 0.0).to(slope.dtype)


@triton.jit
def _relu(values, scale, shift, LEAK: tl.constexpr):  # noqa: N803
    normed = values.to(tl.float32) * scale[None, :] + shift[None, :]
    return tl.where(normed > 0, normed, LEAK * normed)


@triton.jit
def activate(
    x, table, sums, gain, bias, running_mean, running_variance, momentum, eps, out, size,
    INPUTS: tl.constexpr, TRAINING: tl.constexpr, LEAK: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """out = relu(norm(x))."""
    column = tl.arange(0, INPUTS)
    scale, shift = _norm(table, sums, gain, bias, running_mean, running_variance, momentum, eps, size, INPUTS, TRAINING)
    for tile in range(tl.program_id(0), tl.cdiv(size, BLOCK), tl.num_programs(0)):
        rows = tile * BLOCK + tl.arange(0, BLOCK)
        _store(out, rows, size, column, _relu(_rows(x, rows, size, column, INPUTS), scale, shift, LEAK), INPUTS)


@triton.jit
def add_up(x, sums, size, INPUTS: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    """The sums of x and of its square."""
    column = tl.arange(0, INPUTS)
    first, second = tl.zeros((INPUTS,), tl.float32), tl.zeros((INPUTS,), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(size, BLOCK), tl.num_programs(0)):
        rows = tile * BLOCK + tl.arange(0, BLOCK)
        values = _rows(x, rows, size, column, INPUTS).to(tl.float32)
        first += tl.sum(values, 0)
        second += tl.sum(values * values, 0)
    _add(sums, first, second, column, INPUTS)


@triton.jit
def forward(
    x, table, sums, gain, bias, running_mean, running_variance, momentum, eps, out, weight, skip, next_sums, size,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, TAPS: tl.constexpr,  # noqa: N803
    TRAINING: tl.constexpr, LEAK: tl.constexpr, ADDED: tl.constexpr, SUMMED: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr, PART: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """out = convolution(x), plus skip if `ADDED`, and its sums if `SUMMED`; for one tap, convolution(relu(norm(x)))."""
    column, wide = tl.program_id(1) * PART + tl.arange(0, PART), tl.arange(0, WIDE)
    first, second = tl.zeros((PART,), tl.float32), tl.zeros((PART,), tl.float32)
    if TAPS == 1:
        scale, shift = _norm(
            table, sums, gain, bias, running_mean, running_variance, momentum, eps, size, INPUTS, TRAINING
        )
    for tile in range(tl.program_id(0), tl.cdiv(size, BLOCK), tl.num_programs(0)):
        rows = tile * BLOCK + tl.arange(0, BLOCK)
        total = tl.zeros((BLOCK, PART), tl.float32)
        for group in tl.static_range((TAPS * INPUTS + WIDE - 1) // WIDE):
            if TAPS == 1:
                values = _relu(_rows(x, rows, size, wide, INPUTS), scale, shift, LEAK)
                values = tl.where((rows < size)[:, None], values, 0.0).to(weight.dtype.element_ty)
            else:
                values = _patches(x, rows, size, group, HEIGHT, WIDTH, INPUTS, TAPS, WIDE)
            place = group * WIDE + wide
            known = (place < TAPS * INPUTS)[:, None]
            own = tl.load(weight + column[None, :] * TAPS * INPUTS + place[:, None], known, 0.0)
            total = tl.dot(values, own, total, input_precision="ieee")
        if ADDED:
            total += _rows(skip, rows, size, column, OUTPUTS).to(tl.float32)
        _store(out, rows, size, column, total, OUTPUTS)
        if SUMMED:
            total = total.to(out.dtype.element_ty).to(tl.float32)
            first += tl.sum(total, 0)
            second += tl.sum(total * total, 0)
    if SUMMED:
        _add(next_sums, first, second, column, OUTPUTS)


@triton.jit
def backward(
    gradient, output, next_table, next_sums, gain_gradient, bias_gradient, x, table, weight, slope, weight_gradient,
    sums, size,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, TAPS: tl.constexpr,  # noqa: N803
    LEAK: tl.constexpr, NORMED: tl.constexpr, WIDE: tl.constexpr, PART: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """The gradient `slope` of what the ReLU takes, and its sums; for one tap also the gradient of the weights, and what
    arrives may go through the batch norm after the convolution (`NORMED`).
    """
    column, outputs, wide = tl.program_id(1) * PART + tl.arange(0, PART), tl.arange(0, OUTPUTS), tl.arange(0, WIDE)
    scale, shift = tl.load(table + column), tl.load(table + INPUTS + column)
    first, second = tl.zeros((PART,), tl.float32), tl.zeros((PART,), tl.float32)
    if TAPS == 1:
        summed = tl.zeros((PART, OUTPUTS) if INPUTS > OUTPUTS else (OUTPUTS, PART), tl.float32)
        if NORMED:
            a, b, c = _back(next_table, next_sums, size, gain_gradient, bias_gradient, OUTPUTS)
    for tile in range(tl.program_id(0), tl.cdiv(size, BLOCK), tl.num_programs(0)):
        rows = tile * BLOCK + tl.arange(0, BLOCK)
        values = _rows(x, rows, size, column, INPUTS)
        total = tl.zeros((BLOCK, PART), tl.float32)
        if TAPS == 1:
            arriving = _rows(gradient, rows, size, outputs, OUTPUTS)
            if NORMED:
                arriving = _through(arriving, output, a, b, c, rows, size, outputs, OUTPUTS)
            own = tl.load(weight + outputs[:, None] * INPUTS + column[None, :])
            total = tl.dot(arriving, own, total, input_precision="ieee")
            active = _relu(values, scale, shift, LEAK).to(weight.dtype.element_ty)
            if INPUTS > OUTPUTS:  # the larger first, as tensor cores need at least 64
                summed = tl.dot(tl.trans(active), arriving, summed, input_precision="ieee")
            else:
                summed = tl.dot(tl.trans(arriving), active, summed, input_precision="ieee")
        else:
            for group in tl.static_range((TAPS * OUTPUTS + WIDE - 1) // WIDE):
                arriving = _patches(gradient, rows, size, group, HEIGHT, WIDTH, OUTPUTS, TAPS, WIDE)
                tap = TAPS - 1 - (group * WIDE + wide) // OUTPUTS
                place = ((wide % OUTPUTS) * TAPS + tap) * INPUTS
                own = tl.load(weight + place[:, None] + column[None, :], (tap >= 0)[:, None], 0.0)
                total = tl.dot(arriving, own, total, input_precision="ieee")
        values = values.to(tl.float32)
        result = tl.where(values * scale[None, :] + shift[None, :] > 0, total, LEAK * total)
        _store(slope, rows, size, column, result, INPUTS)
        result = result.to(slope.dtype.element_ty).to(tl.float32)
        first += tl.sum(result, 0)
        second += tl.sum(result * values, 0)
    if TAPS == 1:
        place = weight_gradient + outputs[:, None] * INPUTS + column[None, :]
        tl.atomic_add(tl.trans(place) if INPUTS > OUTPUTS else place, summed, sem="relaxed")
    _add(sums, first, second, column, INPUTS)


@triton.jit
def backward_weight(
    gradient, output, next_table, next_sums, gain_gradient, bias_gradient, active, arriving, weight_gradient, size,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,  # noqa: N803
    NORMED: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """The gradient of 3 x 3 weights: each program has some of the taps, and every so many blocks of pixels. With
    `NORMED`, what arrives goes through the batch norm after the convolution, and is written to `arriving`.
    """
    column, wide, group = tl.arange(0, OUTPUTS), tl.arange(0, WIDE), tl.program_id(1)
    summed = tl.zeros((WIDE, OUTPUTS), tl.float32)
    if NORMED:
        a, b, c = _back(next_table, next_sums, size, gain_gradient, bias_gradient, OUTPUTS)
    for tile in range(tl.program_id(0), tl.cdiv(size, BLOCK), tl.num_programs(0)):
        rows = tile * BLOCK + tl.arange(0, BLOCK)
        slope = _rows(gradient, rows, size, column, OUTPUTS)
        if NORMED:
            slope = _through(slope, output, a, b, c, rows, size, column, OUTPUTS)
            if group == 0:
                _store(arriving, rows, size, column, slope, OUTPUTS)
        values = _patches(active, rows, size, group, HEIGHT, WIDTH, INPUTS, 9, WIDE)
        summed = tl.dot(tl.trans(values), slope, summed, input_precision="ieee")
    place = group * WIDE + wide
    known = (place < 9 * INPUTS)[:, None] & (column >= 0)[None, :]
    tl.atomic_add(weight_gradient + column[None, :] * 9 * INPUTS + place[:, None], summed, known, sem="relaxed")


@triton.jit
def join(
    gradient, output, next_table, next_sums, gain_gradient, bias_gradient, slope, out, size,
    INPUTS: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """The gradient of a unit's input: past the unit, and through its first batch norm."""
    column = tl.arange(0, INPUTS)
    a, b, c = _back(next_table, next_sums, size, gain_gradient, bias_gradient, INPUTS)
    for tile in range(tl.program_id(0), tl.cdiv(size, BLOCK), tl.num_programs(0)):
        rows = tile * BLOCK + tl.arange(0, BLOCK)
        total = _rows(gradient, rows, size, column, INPUTS).to(tl.float32) + c[None, :]
        total += _rows(slope, rows, size, column, INPUTS).to(tl.float32) * a[None, :]
        total += _rows(output, rows, size, column, INPUTS).to(tl.float32) * b[None, :]
        _store(out, rows, size, column, total, INPUTS)
