"""The user's own optimizer: plain torch to the bit in `fit`, a naive loop in float64 in `connect`."""

import os
import signal
from functools import partial

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.optim import (
    ASGD,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Muon,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    Rprop,
)
from zoo import ZOO

import thalweg as tw
from thalweg.errors import Stopped
from thalweg.store.runs import Run
from thalweg.training.loop import Settings
from thalweg.training.optimizers import parameter_optimizer
from thalweg.training.step import UniformBends
from thalweg.weightspace.probe import Probe


def in_groups(kind, **settings):
    """Matrices in one group; the rest, at a fifth of their rate and without decay, in another."""

    def made(named):
        matrices, rest = ([p for _, p in named if p.requires_grad and (p.ndim > 1) == wide] for wide in (True, False))
        return kind([{"params": matrices}, {"params": rest, "lr": 0.002, "weight_decay": 0.0}], lr=0.01, **settings)

    return made


def by_name(named):
    """One group for each name, so that neighbours in the vector are apart."""
    return AdamW([{"params": [p], "weight_decay": 0.1 * ("weight" in name)} for name, p in named], lr=0.01)


OPTIMIZERS = {
    "adamw": AdamW,
    "adamw with its own settings": partial(AdamW, lr=0.5, betas=(0.8, 0.9), weight_decay=0.3),
    "adam": partial(Adam, weight_decay=0.1, amsgrad=True),
    "nesterov": partial(SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.05),
    "rmsprop": partial(RMSprop, momentum=0.5, centered=True),
    "adagrad": Adagrad,  # has its state from the beginning
    "adamw in groups": in_groups(AdamW, weight_decay=0.2),
    "nesterov in groups": in_groups(SGD, momentum=0.9, nesterov=True, weight_decay=0.05),
    "a group for each name": by_name,
}
NAMES = ["mlp", "conv_bn", "channels_last", "frozen", "tied_lstm", "transformer_dict"]
RATES = [0.01, 0.02, 0.005]


def rate(i):
    return RATES[i % 3]


def plainly(optimizer, named):
    """As one makes an optimizer in a loop of one's own."""
    return optimizer([p for _, p in named]) if isinstance(optimizer, type | partial) else optimizer(named)


def plain_training(case, module, optimizer, epochs, rate=rate):
    module.train()
    made = plainly(optimizer, [(name, p) for name, p in module.named_parameters() if p.requires_grad])
    given, i = [group["lr"] for group in made.param_groups], 0
    for _ in range(epochs):
        for batch in case.batches():
            i += 1
            for group, own in zip(made.param_groups, given if rate else (), strict=rate is not None):
                group["lr"] = rate(i) * (own / given[0])
            made.zero_grad()
            case.losses(module, batch).mean().backward()
            made.step()
    return tw.Weights.of(module)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", NAMES)
def test_fit_is_plain_torch_to_the_bit(name, optimizer):
    case, chosen = ZOO[name], OPTIMIZERS[optimizer]
    ours = tw.fit(case.module(1), case.task, case.batches(), epochs=3, schedule=rate, optimizer=chosen)
    theirs = plain_training(case, case.module(1), chosen, 3)
    # the products of an LSTM depend on where in memory its weights lie, in the last bit
    close = torch.allclose(ours.vector, theirs.vector, rtol=1e-11, atol=1e-13)
    assert close if name == "tied_lstm" else torch.equal(ours.vector, theirs.vector)
    assert all(torch.equal(ours.buffers[key], theirs.buffers[key]) for key in theirs.buffers)
    assert (ours.vector - tw.Weights.of(case.module(1)).vector).abs().max() > 1e-3


EVERY = {
    "adam fused": partial(Adam, fused=True, weight_decay=0.1),
    "adam upwards": partial(Adam, maximize=True, lr=1e-4),
    "sgd dampened": partial(SGD, lr=0.05, momentum=0.9, dampening=0.3, foreach=True),
    "adadelta": partial(Adadelta, weight_decay=0.1),
    "adafactor": partial(Adafactor, weight_decay=0.1),
    "adamax": Adamax,
    "nadam": partial(NAdam, weight_decay=0.1, decoupled_weight_decay=True),
    "radam": RAdam,
    "rprop": Rprop,
    "asgd": partial(ASGD, t0=3.0, lambd=0.1),
}


class Routed(nn.Module):
    """Each batch goes through one of two layers, and none through the third."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 3) for _ in range(3))

    def forward(self, x):
        return self.layers[len(x) % 2](x)


def routed(dtype=torch.float64):
    torch.manual_seed(3)
    g = torch.Generator().manual_seed(0)
    data = [(torch.randn(n, 4, generator=g).to(dtype), torch.randint(3, (n,), generator=g)) for n in (4, 3, 6, 5, 7)]
    return Routed().to(dtype), data


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, *EVERY])
def test_parameters_without_gradient_in_a_step_are_left_alone_in_it(optimizer, accumulate):
    """As in plain torch, where their `.grad` is None: no decay, no momentum, no step counted."""
    (module, data), chosen = routed(), (OPTIMIZERS | EVERY)[optimizer]
    ours = tw.fit(module, tw.classification(), data, epochs=2, schedule=rate, optimizer=chosen, accumulate=accumulate)
    made = plainly(chosen, list(module.named_parameters()))
    given = [group["lr"] for group in made.param_groups]
    for i, group in enumerate([data[k : k + accumulate] for k in range(0, 5, accumulate)] * 2, start=1):
        for settings, own in zip(made.param_groups, given, strict=True):
            settings["lr"] = rate(i) * (own / given[0])
        made.zero_grad()
        for x, y in group:
            share = len(y) / sum(len(labels) for _, labels in group)
            (nn.functional.cross_entropy(module(x), y) * share).backward()
        made.step()
    theirs = tw.Weights.of(module)
    close = torch.allclose(ours.vector, theirs.vector, rtol=1e-9, atol=1e-12)
    assert close if accumulate > 1 else torch.equal(ours.vector, theirs.vector)


@pytest.mark.parametrize("optimizer", EVERY)
def test_resume_every_optimizer_to_the_bit(optimizer, tmp_path):
    (module, data), seen = routed(torch.float32), []

    def predict(net, batch):
        in_a_step = net.training and signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        seen.extend([1] * in_a_step)
        if in_a_step and len(seen) == 7:
            os.kill(os.getpid(), signal.SIGTERM)
        return net(batch[0]), batch[1]

    def go(run):
        task = tw.Task(tw.classification().loss, predict)
        settings = {"optimizer": EVERY[optimizer], "run": run, "epochs": 3}
        return tw.connect(module, tw.Bezier(*ends, 2), task, data, **settings)

    ends = [tw.Weights.of(routed(torch.float32)[0]), tw.Weights.of(Routed())]
    with pytest.raises(Stopped):
        go(Run(tmp_path / "run", every=1))
    again, whole = go(tmp_path / "run"), go(None)
    assert all(torch.equal(a.vector, b.vector) for a, b in zip(again.bends, whole.bends, strict=True))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_lr_defaults_to_the_optimizers_own(optimizer):
    """A loop that never sets a rate; in `connect`, the same as a constant schedule of that rate."""
    case, chosen = ZOO["mlp"], OPTIMIZERS[optimizer]
    ours = tw.fit(case.module(1), case.task, case.batches(), epochs=2, optimizer=chosen)
    assert torch.equal(ours.vector, plain_training(case, case.module(1), chosen, 2, None).vector)
    own = plainly(chosen, list(case.module(1).named_parameters())).param_groups[0]["lr"]
    one, two = (
        tw.connect(case.module(1), tw.Bezier(*case.ends(), 2), case.task, case.batches(), epochs=2,
                   optimizer=chosen, **given)
        for given in ({}, {"schedule": lambda i: own})
    )  # fmt: skip
    assert all(torch.equal(a.vector, b.vector) for a, b in zip(one.bends, two.bends, strict=True))


def test_warmup_without_a_rate_scales_the_one_there_is():
    case = ZOO["mlp"]
    common = (case.module(1), case.task, case.batches())
    expected = tw.fit(*common, epochs=2, schedule=tw.WarmupCosine(0.02, 1), optimizer=partial(Adam, lr=0.3))
    for given in ({"optimizer": partial(Adam, lr=0.02)}, {"optimizer": Adam, "lr": 0.02}):
        ours = tw.fit(*common, epochs=2, schedule=tw.WarmupCosine(warmup=1), **given)
        assert torch.equal(ours.vector, expected.vector)
    ours = tw.fit(*common, epochs=2, schedule=tw.WarmupCosine(warmup=1), lr=0.02)  # of SGD
    expected = tw.fit(*common, epochs=2, schedule=tw.WarmupCosine(0.02, 1))
    assert torch.equal(ours.vector, expected.vector)
    with pytest.raises(tw.ThalwegError, match="WarmupCosine needs lr_max"):
        tw.walk(*common, tw.WarmupCosine(warmup=1), epochs=2)


def in_one_group(named, **settings):
    return [{"params": [p for _, p in named], **settings}]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "lr must be above 0, or a schedule given, or an optimizer with a rate of its own; got None"),
        ({"schedule": tw.WarmupCosine()}, "lr must be above 0, or a schedule given, or an optimizer"),
        ({"lr": 0.0, "optimizer": Adam}, "lr must be above 0"),
        ({"lr": 0.1, "schedule": lambda i: 0.1}, "a schedule gives every rate, so that lr= would"),
        ({"lr": 0.1, "optimizer": partial(Adam, lr=0.2)}, "got lr = 0.1, and 0.2 in the optimizer: leave one"),
        ({"lr": 0.1, "optimizer": partial(partial(Adam, lr=0.2), eps=1e-3)}, "got lr = 0.1, and 0.2 in the optimizer"),
        ({"optimizer": partial(SGD, lr=0.0)}, "the optimizer's own learning rate must be above 0 .* got 0: set one"),
        (
            {"lr": 0.1, "momentum": 0.5, "optimizer": AdamW},
            "momentum= is that of the default SGD, and would be ignored",
        ),
        ({"optimizer": in_one_group}, "parameter groups need a learning rate, and group 1 has none"),
    ],
)
def test_lr_missing_or_given_twice_is_refused(given, message):
    case = ZOO["mlp"]
    with pytest.raises(tw.ThalwegError, match=message):
        tw.fit(case.module(1), case.task, case.batches(), epochs=1, **given)


class Replacing(SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.data = p.data - group["lr"] * p.grad


class Rateless(Optimizer):
    def __init__(self, parameters, **settings):
        super().__init__(parameters, settings)

    def step(self, closure=None):
        raise AssertionError


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (AdamW(nn.Linear(2, 2).parameters()), r"not an optimizer that is already made .*; got AdamW$"),
        (lambda named: [p for _, p in named], r"it gave \[Parameter containing:$"),
        (lambda named: [{"parameters": [p for _, p in named]}], "it gave .{,80}$"),
        (lambda named: AdamW(nn.Linear(2, 2).parameters()), "not a module's own; 2 of 2 are others"),
        (torch.optim.LBFGS, "without a closure, and LBFGS needs one"),
        (Rateless, "needs a learning rate 'lr', which is set in every step; that of Rateless is None"),
        (partial(Rateless, lr=None), "that of Rateless is None"),
        (
            lambda named: SGD([{"params": [p], "lr": 0.1 * ("bias" in name)} for name, p in named]),
            "another group first",
        ),
        (lambda named: AdamW([{"params": [p for _, p in named], "weight_decay": -1}]), "0 or more; got -1 in AdamW"),
        (partial(Replacing, lr=0.1), "write to its parameters in place, and Replacing has replaced '0.weight'"),
    ],
)
def test_fit_refuses_what_is_no_optimizer(optimizer, message):
    case = ZOO["mlp"]
    with pytest.raises(tw.ThalwegError, match=message):
        tw.fit(case.module(1), case.task, case.batches(), epochs=1, optimizer=optimizer)


def test_lr_equal_to_the_optimizers_rate_is_accepted():
    case = ZOO["mlp"]
    one, two = (
        tw.fit(case.module(1), case.task, case.batches(), epochs=2, lr=0.02, optimizer=optimizer)
        for optimizer in (Adam, partial(Adam, lr=0.02))
    )
    assert torch.equal(one.vector, two.vector)
    groups = partial(in_one_group, lr=0.1)
    one = tw.fit(case.module(1), case.task, case.batches(), epochs=2, optimizer=groups)
    two = tw.fit(case.module(1), case.task, case.batches(), epochs=2, schedule=lambda i: 0.1)
    assert torch.allclose(one.vector, two.vector, rtol=1e-12, atol=1e-14)


def test_resume_refuses_another_rate_of_the_optimizer(tmp_path):
    case = ZOO["mlp"]
    common = (case.module(1), case.task, case.batches())
    made = tw.fit(*common, epochs=2, optimizer=partial(Adam, lr=0.02), run=tmp_path)
    again = tw.fit(*common, epochs=2, optimizer=partial(Adam, lr=0.02), run=tmp_path)
    assert torch.equal(made.vector, again.vector)
    with pytest.raises(tw.ThalwegError, match="the learning rate"):
        tw.fit(*common, epochs=2, optimizer=partial(Adam, lr=0.03), run=tmp_path)
    with pytest.raises(tw.ThalwegError, match="the optimizer's other settings have changed, too") as raised:
        tw.fit(*common, epochs=2, optimizer=in_groups(AdamW), run=tmp_path)
    assert str(raised.value).count("the optimizer's") == 6


def test_parameter_groups_alone_are_trained_by_sgd():
    case = ZOO["mlp"]

    def groups(named):
        return [{"params": [p for name, p in named if "weight" in name], "weight_decay": 0.1},
                {"params": [p for name, p in named if "bias" in name], "lr": 0.05}]  # fmt: skip

    ours = tw.fit(
        case.module(1),
        case.task,
        case.batches(),
        epochs=2,
        schedule=lambda i: 0.1,
        momentum=0.5,
        optimizer=groups,
    )
    module = case.module(1)
    made = SGD(groups(list(module.named_parameters())), lr=0.1, momentum=0.5)
    for batch in case.batches() * 2:
        made.zero_grad()
        case.losses(module, batch).mean().backward()
        made.step()
    assert torch.equal(ours.vector, tw.Weights.of(module).vector)


def naive_curve(case, curve, ts, optimizer, penalty=0.0, batches=None):
    """Bends as tensors of their own, phi(t) by functional_call, all gradients by autograd."""
    module, layout = case.module(1), curve.layout
    module.train()
    bends = [[nn.Parameter(p.clone()) for p in layout.split(bend.vector).values()] for bend in curve.bends]
    made = plainly(optimizer, [pair for bend in bends for pair in zip(layout.names, bend, strict=True)])
    given = [group["lr"] for group in made.param_groups]
    ends = [list(layout.split(end.vector).values()) for end in (curve.start, curve.end)]
    for i, (t, batch) in enumerate(zip(ts, (batches or case.batches()) * 3, strict=True), start=1):
        for group, own in zip(made.param_groups, given, strict=True):
            group["lr"] = rate(i) * (own / given[0])
        made.zero_grad()
        parts = zip(ends[0], *bends, ends[1], strict=True)
        phi = [sum(c * p for c, p in zip(curve.coefficients(t).tolist(), points, strict=True)) for points in parts]
        inside = dict(zip(layout.names, phi, strict=True))
        loss = case.losses(lambda *a, inside=inside, **k: functional_call(module, inside, a, k), batch).mean()
        (loss + penalty / 2 * sum(p.square().sum() for p in phi)).backward()
        made.step()
    return torch.stack([torch.cat([p.detach().flatten() for p in bend]) for bend in bends])


@pytest.mark.parametrize(
    ("chosen", "penalty"),
    [
        *((OPTIMIZERS[name], 0.0) for name in ("adamw", "nesterov", "adamw in groups", "a group for each name")),
        *((kind, 0.3) for kind in (Adam, partial(SGD, momentum=0.9), RMSprop)),
    ],
)
@pytest.mark.parametrize("name", ["mlp", "conv_bn", "frozen", "tied_lstm"])
def test_connect_is_a_naive_loop(name, chosen, penalty):
    """The optimizer's own decay acts on the bends, and that of the call at phi(t)."""
    case, ts, bends = ZOO[name], [], 1 if name == "mlp" else 2  # a single bend has no gradient of its own
    curve = tw.Bezier(*case.ends(), bends)
    recorded, plain = tw.Bezier(*case.ends(), bends), curve.coefficients
    recorded.coefficients = lambda t: ts.append(t) or plain(t)
    settings = {"epochs": 3, "schedule": rate, "optimizer": chosen, "weight_decay": penalty}
    ours = tw.connect(case.module(1), recorded, case.task, case.batches(), **settings)
    theirs = naive_curve(case, curve, ts[2:11], chosen, penalty)
    # biases before a batch norm have a gradient of rounding alone, which Adam divides by its own size
    atol = 1e-8 if name == "conv_bn" else 1e-12
    torch.testing.assert_close(torch.stack([bend.vector for bend in ours.bends]), theirs, rtol=1e-9, atol=atol)


@pytest.mark.parametrize("optimizer", ["nesterov", "adamw in groups"])
@pytest.mark.parametrize("name", ["mlp", "frozen", "tied_lstm"])
def test_accumulating_on_a_curve_is_a_naive_loop_over_larger_batches(name, optimizer):
    """Two batches at one t, and the third of each epoch alone."""
    case, chosen, ts = ZOO[name], OPTIMIZERS[optimizer], []
    curve = tw.PolyChain(*case.ends(), 2)
    recorded, plain = tw.PolyChain(*case.ends(), 2), curve.coefficients
    recorded.coefficients = lambda t: ts.append(t) or plain(t)
    settings = {"epochs": 3, "schedule": rate, "optimizer": chosen, "accumulate": 2}
    ours = tw.connect(case.module(1), recorded, case.task, case.batches(), **settings)
    first, second, third = case.batches()
    larger = [tuple(torch.cat(pair) for pair in zip(first, second, strict=True)), third]
    theirs = naive_curve(case, curve, ts[2:8], chosen, batches=larger)
    torch.testing.assert_close(torch.stack([bend.vector for bend in ours.bends]), theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", [AdamW, partial(SGD, momentum=0.9), partial(Adam, amsgrad=True)])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", ["mlp", "conv_bn", "frozen"])
def test_optimizers_decay_may_act_at_phi(name, streamed, kind):
    """Decoupled, bend i moves by lr * decay * c_i * phi besides; otherwise the penalty of each group is in its loss."""
    case, ts = ZOO[name], []
    curve = tw.Bezier(*case.ends(), 2)
    recorded, plain = tw.Bezier(*case.ends(), 2), curve.coefficients
    recorded.coefficients = lambda t: ts.append(t) or plain(t)
    settings = {"epochs": 3, "schedule": rate, "optimizer": in_groups(kind, weight_decay=0.4), "decay_at": "phi"}
    settings["compute"] = tw.Compute(stream=streamed)
    ours = tw.connect(case.module(1), recorded, case.task, case.batches(), **settings)
    module, layout = case.module(1).train(), curve.layout
    bends = [[nn.Parameter(p.clone()) for p in layout.split(bend.vector).values()] for bend in curve.bends]
    made = in_groups(kind, weight_decay=0.0)([pair for bend in bends for pair in zip(layout.names, bend, strict=True)])
    ends = [list(layout.split(end.vector).values()) for end in (curve.start, curve.end)]
    for i, (t, batch) in enumerate(zip(ts[2:11], case.batches() * 3, strict=True), start=1):
        made.param_groups[0]["lr"], made.param_groups[1]["lr"] = rate(i), rate(i) * 0.2
        made.zero_grad()
        c = plain(t).tolist()
        phi = [
            sum(a * p for a, p in zip(c, points, strict=True)) for points in zip(ends[0], *bends, ends[1], strict=True)
        ]
        inside = dict(zip(layout.names, phi, strict=True))
        loss = case.losses(lambda *a, inside=inside, **k: functional_call(module, inside, a, k), batch).mean()
        penalty = 0.4 / 2 * sum(p.square().sum() for p in phi if p.ndim > 1)
        (loss if kind is AdamW else loss + penalty).backward()
        with torch.no_grad():
            for k, bend in enumerate(bends if kind is AdamW else (), start=1):
                for p, place in zip(bend, phi, strict=True):
                    p -= rate(i) * 0.4 * c[k] * place if p.ndim > 1 else 0.0
        made.step()
    theirs = torch.stack([torch.cat([p.detach().flatten() for p in bend]) for bend in bends])
    torch.testing.assert_close(torch.stack([bend.vector for bend in ours.bends]), theirs, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("upwards", [False, True])
@pytest.mark.parametrize(
    "kind",
    [SGD, AdamW, Adafactor, partial(NAdam, decoupled_weight_decay=True), partial(RAdam, decoupled_weight_decay=True)],
)
def test_decay_at_phi_pulls_towards_zero(kind, upwards):
    """With a gradient of zero nothing else moves the bends, in whichever way the optimizer decays."""
    check_pull(partial(kind, maximize=upwards, weight_decay=0.5))


def test_decay_at_phi_of_muon():
    check_pull(partial(Muon, weight_decay=0.5))


def check_pull(optimizer):
    torch.manual_seed(0)
    module, ends = (
        nn.Linear(3, 3, bias=False).double(),
        [tw.Weights.of(nn.Linear(3, 3, bias=False).double()) for _ in "ab"],
    )
    curve, ts = tw.Bezier(*ends, 2), []
    recorded = tw.Bezier(*ends, 2)
    recorded.coefficients = lambda t: ts.append(t) or curve.coefficients(t)
    task, x = tw.Task(lambda outputs, targets: 0 * outputs.sum(1)), torch.ones(2, 3).double()
    settings = {"epochs": 1, "schedule": lambda i: 0.1, "optimizer": optimizer, "decay_at": "phi"}
    ours = tw.connect(module, recorded, task, [(x, x)], **settings)
    c, phi = curve.coefficients(ts[2]).tolist(), curve.point(ts[2]).vector
    for k, (moved, bend) in enumerate(zip(ours.bends, curve.bends, strict=True), start=1):
        torch.testing.assert_close(moved.vector, bend.vector - 0.1 * 0.5 * c[k] * phi, rtol=1e-12, atol=1e-14)


def test_decay_at_phi_needs_a_known_optimizer_and_one_t():
    case = ZOO["mlp"]

    class Own(SGD):
        pass

    def go(**settings):
        settings = {"epochs": 1, "lr": 0.1, "decay_at": "phi", **settings}
        tw.connect(case.module(1), tw.Bezier(*case.ends()), case.task, case.batches(), **settings)

    with pytest.raises(tw.ThalwegError, match="how Own decays weights is not known"):
        go(optimizer=partial(Own, weight_decay=0.1))
    with pytest.raises(tw.ThalwegError, match="decay_at must be 'bends' or 'phi'; got 'middle'"):
        go(decay_at="middle")
    trainable = UniformBends(Probe(case.module(1), case.ends()[0]), tw.Bezier(*case.ends()))
    trainable.same_t = False
    settings = Settings(1, 0.1, 0.9, 0.0, None, AdamW, None, 0, decay_at="phi")
    with pytest.raises(tw.ThalwegError, match="ranks at different t would decay differently"):
        parameter_optimizer(trainable, settings, processes=2)


def test_walk_moves_with_the_users_optimizer_from_a_kept_epoch():
    """Two epochs, then two more from the kept state, are four."""
    case, chosen = ZOO["transformer_dict"], OPTIMIZERS["adamw in groups"]
    settings = {"optimizer": chosen, "seed": 1}
    common = case.task, case.batches()
    four = tw.fit(case.module(1), *common, epochs=4, schedule=lambda i: 0.01, keep=[2], **settings)
    walk = tw.walk(case.module(1), *common, tw.SWA(lr=0.01), epochs=2, start=four.kept[2], **settings)
    assert torch.equal(walk.members[-1].vector, four.vector)


def test_parameters_that_no_loss_has_reached_are_left_alone():
    """As in plain torch: no decay, and no step counted."""

    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.first(x) + (self.second(x) if x.shape[0] == 3 else 0)

    g = torch.Generator().manual_seed(0)
    batches = [(torch.randn(n, 2, generator=g), torch.randint(2, (n,), generator=g)) for n in (4, 4, 3, 3)]
    torch.manual_seed(1)
    module, kept = Late(), {}
    ours = tw.fit(module, tw.classification(), batches[:2], epochs=2, schedule=lambda i: 0.1, optimizer=AdamW)
    start = tw.Weights.of(module)
    for name, value in start.layout.split(ours.vector).items():
        kept[name] = torch.equal(value, start.layout.split(start.vector)[name])
    assert kept == {"first.weight": False, "first.bias": False, "second.weight": True, "second.bias": True}
    ours = tw.fit(module, tw.classification(), batches, epochs=1, schedule=lambda i: 0.1, optimizer=AdamW)
    made = AdamW(module.parameters(), lr=0.1)
    for x, y in batches:
        made.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        made.step()
    assert torch.equal(ours.vector, tw.Weights.of(module).vector)


def test_optimizer_function_sees_the_attributes_of_the_parameters():
    module, seen = nn.Linear(2, 2), []
    module.bias.no_decay = True

    def made(named):
        seen.extend((name, tuple(p.shape), hasattr(p, "no_decay"), p.requires_grad) for name, p in named)
        return SGD(named, lr=0.1)

    tw.fit(module, tw.classification(), [(torch.ones(3, 2), torch.tensor([0, 1, 1]))], epochs=1, lr=0.1, optimizer=made)
    assert seen == [("weight", (2, 2), False, True), ("bias", (2,), True, True)]


def test_optimizer_function_gets_names_once_for_each_bend():
    case = ZOO["mlp"]
    with pytest.raises(tw.ThalwegError, match=r"once for each bend; '0\.weight' is in no group"):
        tw.connect(
            case.module(1), tw.Bezier(*case.ends(), 2), case.task, case.batches(), epochs=1, lr=0.1,
            optimizer=lambda named: SGD(list(dict(named).values())),
        )  # fmt: skip


class Positive(nn.Parameter):
    """As those of geoopt, which its optimizers treat in their own way."""


class Projected(SGD):
    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        for parameter in self.param_groups[0]["params"]:
            if isinstance(parameter, Positive):
                parameter.clamp_(min=0)


def test_an_optimizer_gets_parameters_of_the_types_of_the_network(tmp_path):
    case = ZOO["mlp"]
    module = case.module(1)
    last = [*module.modules()][-1]
    last.weight = Positive(last.weight.detach().abs())
    call = partial(tw.fit, module, case.task, case.batches(), optimizer=partial(Projected, lr=0.5))
    found = call(epochs=3)
    with pytest.raises(ZeroDivisionError):
        call(epochs=3, run=tmp_path, on_epoch=lambda found: 1 / (found["epoch"] - 1))
    resumed = call(epochs=3, run=tmp_path)
    optimizer = Projected(module.parameters(), lr=0.5)
    for _ in range(3):
        for x, y in case.batches():
            optimizer.zero_grad()
            case.task.loss(module(x), y).mean().backward()
            optimizer.step()
    assert float(last.weight.detach().min()) == 0
    assert torch.allclose(found.vector, tw.Weights.of(module).vector, atol=1e-6)
    assert torch.equal(found.vector, resumed.vector)
