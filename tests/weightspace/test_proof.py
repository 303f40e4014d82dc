"""In the first pass of every call the copy is proven to compute with its own weights, and to be a copy."""

from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from zoo import ZOO, bits, same_bits

import thalweg as tw
from thalweg.evaluation.curve_ensemble import curve_ensemble
from thalweg.weightspace.probe import Probe
from thalweg.weightspace.proof import agree
from thalweg.weightspace.watch import Watch

BATCHES = ZOO["mlp"].batches()
TASK = tw.classification()


def line(module):
    return tw.Segment(*(tw.Weights.of(module),) * 2)


def calls(task=TASK):
    method = tw.FGE(cycle=tw.Iterations(2), lr_max=0.1, lr_min=0.05)
    return {
        "fit": lambda m: tw.fit(m, task, BATCHES, epochs=1, lr=0.1),
        "connect": lambda m: tw.connect(
            m, tw.Bezier(tw.Weights.of(m), tw.Weights.of(m)), task, BATCHES, epochs=1, lr=0.1
        ),
        "walk": lambda m: tw.walk(m, task, BATCHES, method, epochs=2),
        "scan": lambda m: tw.scan(m, line(m), task, {"x": BATCHES}, points=2, bn_batches=BATCHES),
        "ensemble": lambda m: tw.Ensemble(m, [tw.Weights.of(m)]).score(task, BATCHES),
        "curve_ensemble": lambda m: curve_ensemble(m, line(m), task, BATCHES, points=2, bn_batches=BATCHES),
        "bn_batches": lambda m: tw.update_bn(m, tw.Weights.of(m).bare(), BATCHES, task),
    }


CALLS = calls()


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.drop, self.last = (
            nn.Linear(4, 6),
            nn.BatchNorm1d(6),
            nn.Dropout(0.5),
            nn.Linear(6, 3),
        )

    def forward(self, x):
        return self.last(self.drop(self.norm(self.first(x))))


def lambda_over_self():
    module = Normed()
    inner = module.norm
    module.norm.forward = lambda x: nn.BatchNorm1d.forward(inner, x)
    return module


def part_without_parameters():
    """The original's dropout runs in the original's mode, and no tensor of it takes part."""
    module = Normed()
    original = module.drop
    module.first.register_forward_hook(lambda part, args, out: original(out))
    return module


def replaced_forward():
    module = Normed()
    whole = module.forward
    module.forward = lambda x: 2 * whole(x)
    return module


class PlainList(Normed):
    def __init__(self):
        super().__init__()
        self.more = [nn.Linear(3, 3).double()]

    def forward(self, x):
        return self.more[0](super().forward(x))


class MadeLate(Normed):
    def forward(self, x):
        if not hasattr(self, "late"):
            self.late = nn.Linear(3, 3).double()
        return self.late(super().forward(x))


class ReplacesData(Normed):
    def forward(self, x):
        self.first.weight.data = self.first.weight.data.clone()
        return super().forward(x)


class CopiesBadly(Normed):
    """Loses an attribute in every copy."""

    scale = 1.0

    def __deepcopy__(self, memo):
        new = type(self)().double()
        new.load_state_dict(self.state_dict())
        return new

    def forward(self, x):
        return self.scale * super().forward(x)


def badly_copied(kind=CopiesBadly):
    module = kind()
    module.scale = 2.0
    return module


class StaleCache(Normed):
    """Used before it was handed over, it has a copy of its weight that nobody clears."""

    def __init__(self):
        super().__init__()
        self.cache = torch.randn(6, 4).double()

    def forward(self, x):
        return self.last(self.norm(F.linear(x, self.cache)))


REFUSED = {
    "lambda over self": (lambda_over_self, r"'norm(\.\w+)?' of the network that was given takes part"),
    "a part without parameters": (part_without_parameters, "'drop' of the network that was given takes part"),
    "a replaced forward": (replaced_forward, "'first' of the network that was given takes part"),
    "a plain list": (PlainList, r"'more\.0\.\w+' takes part in the loss and does not move"),
    "a layer made late": (MadeLate, r"'late\.\w+' takes part in the loss and does not move"),
    "data replaced": (ReplacesData, r"'first\.weight' no longer lies in the vector"),
    "a bad copy": (badly_copied, "a copy of the network computes something else than the network itself"),
    "a stale cache": (StaleCache, r"'first\.weight' takes no part in the forward pass, and the plain tensor 'cache'"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", REFUSED)
def test_every_call_refuses_a_copy_that_uses_the_original(name, call):
    make, message = REFUSED[name]
    module = make().double()
    before = bits(module)
    with pytest.raises(tw.ThalwegError, match=message):
        CALLS[call](module)
    assert same_bits(before, bits(module))


class Output:
    """The user's own, in which no batch would have its tensors."""

    def __init__(self, logits):
        self.logits = logits


class Objects(nn.Module):
    def forward(self, x):
        return Output(super().forward(x))


class ObjectsOfAPlainList(Objects, PlainList):
    pass


class ObjectsOfALateLayer(Objects, MadeLate):
    pass


class ObjectsCopiedBadly(Objects, CopiesBadly):
    pass


GIVING_OBJECTS = {
    "a plain list": ObjectsOfAPlainList,
    "a layer made late": ObjectsOfALateLayer,
    "a bad copy": lambda: badly_copied(ObjectsCopiedBadly),
}


@pytest.mark.parametrize("call", [name for name in CALLS if name != "curve_ensemble"])  # which needs logits
@pytest.mark.parametrize("name", GIVING_OBJECTS)
def test_every_call_refuses_a_copy_that_uses_the_original_with_output_objects(name, call):
    module = GIVING_OBJECTS[name]().double()
    task = tw.Task(
        lambda outputs, targets: TASK.loss(outputs.logits, targets),
        lambda net, batch: (net(batch[0]), batch[1]),
        probabilities=lambda outputs: outputs.logits.softmax(1),
    )
    with pytest.raises(tw.ThalwegError, match=REFUSED[name][1]):
        calls(task)[call](module)


@pytest.mark.parametrize("call", [name for name in CALLS if name not in ("ensemble", "bn_batches")])
def test_penalty_over_the_callers_network_is_refused(call):
    module = Normed().double()
    task = tw.Task(
        lambda outputs, targets: TASK.loss(outputs, targets) + module.first.weight.square().sum(), TASK.predict
    )
    with pytest.raises(tw.ThalwegError, match=r"'first\.weight' of the network that was given takes part"):
        calls(task)[call](module)
    assert module.first.weight.grad is None


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("how", ["frozen", "no_grad", "detached"])
def test_teacher_in_the_task_is_allowed(call, how):
    module, teacher = Normed().double(), Normed().double().eval().requires_grad_(how != "frozen")

    def predict(net, batch):
        with torch.set_grad_enabled(how != "no_grad" and torch.is_grad_enabled()):
            wanted = teacher(batch[0])
        return (net(batch[0]), wanted.detach() if how == "detached" else wanted), batch[1]

    def loss(outputs, targets):
        logits, wanted = outputs
        return TASK.loss(logits, targets) + (logits - wanted).square().mean(1)

    calls(tw.Task(loss, predict))[call](module)
    assert all(p.grad is None for p in teacher.parameters())


def test_parameter_of_the_task_is_refused():
    weight = nn.Parameter(torch.ones(()).double())
    task = tw.Task(lambda outputs, targets: weight * TASK.loss(outputs, targets))
    with pytest.raises(tw.ThalwegError, match=r"a parameter of shape \(\) takes part in the loss and does not move"):
        tw.fit(Normed().double(), task, BATCHES, epochs=1, lr=0.1)
    assert weight.grad is None


def test_inputs_that_require_a_gradient_are_allowed():
    def predict(net, batch):
        with torch.enable_grad():
            x = batch[0].clone().requires_grad_()
            outputs = net(x)
            [slope] = torch.autograd.grad(outputs.sum(), x, create_graph=True)
        return (outputs, slope), batch[1]

    task = tw.Task(lambda outputs, targets: outputs[1].square().sum(1), predict)
    module = ZOO["mlp"].module(1)
    tw.fit(module, task, BATCHES, epochs=1, lr=0.01)
    tw.scan(module, line(module), task, {"x": BATCHES}, points=2)


def test_loss_with_a_counter_is_called_once_for_each_step():
    seen = []

    def loss(outputs, targets):
        seen.append(len(outputs))
        return TASK.loss(outputs, targets) / len(seen)

    tw.fit(Normed().double(), tw.Task(loss), BATCHES, epochs=1, lr=0.1)
    assert seen == [len(x) for x, _ in BATCHES]


def test_module_is_untouched_where_eval_or_forward_write_to_it():
    class Writes(Normed):
        def eval(self):
            self.first.weight.data.mul_(1.5)
            return super().eval()

        def forward(self, x):
            self.seen = x
            with torch.no_grad():
                self.last.weight.clamp_(-0.1, 0.1)
            return super().forward(x)

    module = Writes().double()
    before = bits(module)
    for call in ("fit", "scan", "ensemble", "bn_batches"):
        CALLS[call](module)
        assert same_bits(before, bits(module))
        assert not hasattr(module, "seen")


def test_training_is_checked_in_its_first_step_alone(monkeypatch):
    begun = []
    plain = Watch.__init__
    monkeypatch.setattr(Watch, "__init__", lambda self, *args: begun.append(1) or plain(self, *args))
    tw.fit(Normed().double(), TASK, BATCHES[:1], epochs=1, lr=0.1)
    once = len(begun)
    tw.fit(Normed().double(), TASK, BATCHES, epochs=3, lr=0.1)
    assert len(begun) == 2 * once > 0


COUNTED = {"cache": {}, "count": 0}


class OutsideState(nn.Linear):
    """Keeps something where nobody can put it back."""

    def forward(self, x):
        COUNTED["count"] += 1
        return super().forward(x) * COUNTED["count"]


def stateful_task():
    rng = torch.Generator().manual_seed(0)
    return tw.Task(
        lambda outputs, targets: TASK.loss(outputs, targets) * torch.rand(1, generator=rng).double(), TASK.predict
    )


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("network", "a copy of the network computes something else than the network itself"),
        ("task", r"on the first batches of 'x' after the others and .* by itself: .* keep something from one pass"),
    ],
)
@pytest.mark.parametrize("points", [1, 3])
def test_scan_refuses_state_kept_between_passes(what, said, points):
    module = OutsideState(4, 3).double() if what == "network" else nn.Linear(4, 3).double()
    task = TASK if what == "network" else stateful_task()
    with pytest.raises(tw.ThalwegError, match=said):
        tw.scan(module, [tw.Weights.of(module)] * points, task, {"x": BATCHES})


class Remembers(nn.Linear):
    """By the size of the batch, in a cache outside of the network."""

    def forward(self, x):
        if len(x) not in COUNTED["cache"]:
            COUNTED["cache"][len(x)] = super().forward(x).detach()
        return COUNTED["cache"][len(x)]


@pytest.mark.parametrize("call", ["scan", "ensemble"])
def test_cache_outside_of_the_network_is_refused(call):
    COUNTED["cache"].clear()
    with pytest.raises(tw.ThalwegError, match="'weight' takes part less often in the last pass than in the first"):
        CALLS[call](Remembers(4, 3).double())


def test_ensemble_refuses_state_kept_between_passes():
    module = OutsideState(4, 3).double()
    with pytest.raises(tw.ThalwegError, match="a copy of the network computes something else than the network itself"):
        tw.Ensemble(module, [tw.Weights.of(module)] * 2).predict(TASK, BATCHES)


def test_ensemble_refuses_predictions_that_change():
    rng = torch.Generator().manual_seed(0)
    task = tw.Task(TASK.loss, lambda net, batch: (net(batch[0]) * torch.rand(1, generator=rng).double(), batch[1]))
    module = nn.Linear(4, 3).double()
    with pytest.raises(tw.ThalwegError, match="predicts something else by itself than after the others"):
        tw.Ensemble(module, [tw.Weights.of(module)] * 2).predict(task, BATCHES)


def test_curve_ensemble_refuses_predictions_that_change():
    rng = torch.Generator().manual_seed(0)
    task = tw.Task(TASK.loss, lambda net, batch: (net(batch[0]) * torch.rand(1, generator=rng).double(), batch[1]))
    with pytest.raises(
        tw.ThalwegError, match="the point t = 1 predicts something else by itself than after the others"
    ):
        calls(task)["curve_ensemble"](nn.Linear(4, 3).double())


def test_ensemble_is_proven_once_for_each_task(monkeypatch):
    module = nn.Linear(4, 3).double()
    ensemble = tw.Ensemble(module, [tw.Weights.of(module)])
    ensemble.predict(TASK, BATCHES)
    monkeypatch.setattr(Probe, "__init__", None)
    ensemble.predict(TASK, BATCHES)


@pytest.mark.parametrize("way", ["in place", "attribute"])
def test_loss_that_writes_into_the_output_does_not_spoil_predictions(way):
    class Output:
        def __init__(self, logits):
            self.inner = {"all": [logits]}

        @property
        def logits(self):
            return self.inner["all"][0]

    class Objects(nn.Linear):
        def forward(self, x):
            return Output(super().forward(x))

    def loss(out, targets):
        if way == "in place":
            out.logits.mul_(-1)
        else:
            out.inner["all"][0] = -out.logits
        return F.cross_entropy(out.logits, targets, reduction="none")

    module, task = Objects(4, 3).double(), tw.Task(loss, lambda net, batch: (net(batch[0]), batch[1]))
    scan = tw.scan(module, [tw.Weights.of(module)], task, {"x": BATCHES})
    with torch.no_grad():
        wrong = torch.cat([F.linear(x, module.weight, module.bias).argmax(1) != y for x, y in BATCHES])
    assert scan.values["x"]["error"][0] == pytest.approx(wrong.double().mean().item())


class Doubles(nn.Module):
    """Keeps a product of weights on the class, made in evaluation mode and thrown away by train()."""

    kept: ClassVar[torch.Tensor | None] = None

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def train(self, mode=True):
        if mode:
            Doubles.kept = None
        return super().train(mode)

    def forward(self, x):
        if self.training:
            return self.last(self.norm(self.first(x)))
        if Doubles.kept is None:
            Doubles.kept = 2 * self.first.weight.detach()
        return self.last(self.norm(F.linear(x, Doubles.kept)))


class NeverClears(Doubles):
    def train(self, mode=True):
        return nn.Module.train(self, mode)


def by_hand(weights, x):
    """Normalised by the batch, as where it is the only one of `update_bn`, with the variance of all but one example."""
    first, last, scale, shift = (weights[name] for name in ("first.weight", "last.weight", "norm.weight", "norm.bias"))
    hidden = x @ (2 * first).T
    hidden = (hidden - hidden.mean(0)) / (hidden.var(0) + 1e-5).sqrt() * scale + shift
    return hidden @ last.T + weights["last.bias"]


@pytest.mark.parametrize("call", ["scan", "curve_ensemble", "ensemble"])
def test_cache_on_the_class_that_train_clears_is_right_at_every_point(call):
    torch.manual_seed(0)
    module, a, b = (Doubles().double() for _ in range(3))
    module.eval()(BATCHES[0][0])  # which fills it before the call
    data, labels = BATCHES[:1], BATCHES[0][1]
    line = tw.Segment(tw.Weights.of(a), tw.Weights.of(b))
    points = [line.point(t) for t in (0.0, 0.5, 1.0)]
    logits = [by_hand(point.state_dict(), data[0][0]) for point in points]
    if call == "scan":
        found = tw.scan(module, line, TASK, {"x": data}, points=3, bn_batches=data).values["x"]["loss"]
    elif call == "curve_ensemble":
        found = curve_ensemble(module, line, TASK, data, points=3, bn_batches=data).train_loss
    else:
        probabilities, _ = tw.Ensemble(module, [tw.update_bn(module, point, data) for point in points]).predict(
            TASK, data
        )
        torch.testing.assert_close(probabilities, torch.stack([x.softmax(1) for x in logits]).mean(0))
        return
    torch.testing.assert_close(torch.tensor(found).double(), torch.stack([F.cross_entropy(x, labels) for x in logits]))


def test_cache_on_the_class_that_train_clears_is_right_along_a_walk():
    method = tw.FGE(cycle=tw.Iterations(2), lr_max=0.5, lr_min=0.1)
    walk = tw.walk(Doubles().double(), TASK, BATCHES[:2], method, epochs=3, watch={"x": BATCHES[:1]})
    [trace], (x, labels) = walk.traces, BATCHES[0]
    for member, i in zip(walk.members, trace.collected, strict=True):
        w = member.state_dict()
        hidden = F.batch_norm(x @ (2 * w["first.weight"]).T, w["norm.running_mean"], w["norm.running_var"])
        logits = (hidden * w["norm.weight"] + w["norm.bias"]) @ w["last.weight"].T + w["last.bias"]
        found = trace.watched["x"]["data_loss"][trace.watched_at.index(i)]
        assert found == pytest.approx(F.cross_entropy(logits, labels).item())


@pytest.mark.parametrize("call", CALLS)
def test_calls_leave_no_cache_on_the_class(call):
    Doubles.kept = None
    CALLS[call](Doubles().double())
    assert Doubles.kept is None


def test_ensemble_that_was_proven_leaves_no_cache_on_the_class():
    module = Doubles().double()
    ensemble = tw.Ensemble(module, [tw.Weights.of(module)])
    ensemble.predict(TASK, BATCHES)
    ensemble.predict(TASK, BATCHES)
    assert Doubles.kept is None


@pytest.mark.parametrize("call", CALLS)
def test_cache_on_the_class_that_nothing_clears_is_refused(call):
    Doubles.kept = None
    module = NeverClears().double()
    before = bits(module)
    with pytest.raises(
        tw.ThalwegError, match=r"'first.weight' takes part less often in the last pass than in the first"
    ):
        CALLS[call](module)
    assert same_bits(before, bits(module))
    Doubles.kept = None


def test_watching_a_walk_refuses_a_cache_that_nothing_clears():
    Doubles.kept = None
    method = tw.FGE(cycle=tw.Iterations(2), lr_max=0.1, lr_min=0.05)
    with pytest.raises(tw.ThalwegError, match=r"'first.weight' takes part less often"):
        tw.walk(NeverClears().double(), TASK, BATCHES, method, epochs=2, watch={"x": BATCHES})
    Doubles.kept = None


def test_scan_in_a_folder_refuses_a_cache_that_nothing_clears(tmp_path):
    Doubles.kept = None
    module = NeverClears().double()
    with pytest.raises(tw.ThalwegError, match=r"'first.weight' takes part less often"):
        tw.scan(module, line(module), TASK, {"x": BATCHES}, points=2, bn_batches=BATCHES, run=tmp_path / "run")
    Doubles.kept = None


class Keyed(nn.Linear):
    """Keeps a product of its weights outside of it under some key, from one of its calls on."""

    kept: ClassVar[dict] = {}
    calls, begin, key = 0, 1, staticmethod(lambda net, x: Keyed)

    def forward(self, x):
        Keyed.calls += 1
        key = Keyed.key(self, x)
        doubled = Keyed.kept[key] if key in Keyed.kept else 2 * self.weight
        if Keyed.calls >= Keyed.begin:
            Keyed.kept[key] = doubled
        return F.linear(x, doubled, self.bias)


KEYS = {
    "class": lambda net, x: type(net),
    "network": lambda net, x: id(net),
    "memory of the weight": lambda net, x: net.weight.data_ptr(),
    "size of the batch": lambda net, x: x.shape,
    "batch": lambda net, x: id(x),
    "memory of the batch": lambda net, x: x.data_ptr(),
    "content of the batch": lambda net, x: float(x.sum()),
    "network and memory of the batch": lambda net, x: (id(net), x.data_ptr()),
}


@pytest.fixture
def keyed(monkeypatch):
    monkeypatch.setattr(Keyed, "kept", {})
    monkeypatch.setattr(Keyed, "calls", 0)
    return monkeypatch


def loaded():
    torch.manual_seed(0)
    return torch.utils.data.DataLoader([(torch.randn(4).double(), k % 3) for k in range(24)], batch_size=8)


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("data", ["list", "loader"])
@pytest.mark.parametrize("key", KEYS)
def test_scan_refuses_a_cache_under_any_key(keyed, key, data, far):
    keyed.setattr(Keyed, "key", staticmethod(KEYS[key]))
    module, other = (Keyed(4, 3).double() for _ in range(2))
    line = tw.Segment(tw.Weights.of(other), tw.Weights.of(other if far else module))
    with pytest.raises(tw.ThalwegError, match="'weight' takes part less often"):
        tw.scan(module, line, TASK, {"x": BATCHES if data == "list" else loaded()}, points=3)


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("begin", range(2, 9))
def test_scan_refuses_a_cache_that_begins_at_a_later_pass(keyed, begin, folder, tmp_path):
    """Of the original, of the fingerprint of a call, at the first point, or at a later one."""
    keyed.setattr(Keyed, "begin", begin)
    module = Keyed(4, 3).double()
    with pytest.raises(tw.ThalwegError, match="'weight' takes part less often"):
        tw.scan(module, line(module), TASK, {"x": BATCHES[:2]}, points=5, run=tmp_path / "run" if folder else None)


def test_scan_runs_the_first_batch_once_more_only_where_parameters_are_used_less_often():
    calls = []
    module = nn.Linear(4, 3).double()
    task = tw.Task(TASK.loss, lambda net, batch: calls.append(net) or TASK.predict(net, batch))
    tw.scan(module, line(module), task, {"x": BATCHES[:2]}, points=3)
    assert len(calls) == 1 + 3 * 2 + 1  # watched, measured, and the first batch of the last point by itself


class Drawn(list):
    """Batches that come with noise no seed reaches."""

    passes = 0

    def __iter__(self):
        rng = torch.Generator()
        rng.seed()
        for x, y in super().__iter__():
            self.passes += 1
            yield x + torch.randn(x.shape, generator=rng).double(), y


def test_scan_refuses_statistics_that_differ_from_pass_to_pass():
    module = Normed().double()
    with pytest.raises(tw.ThalwegError, match="other batch-norm statistics after the others than by itself"):
        tw.scan(module, line(module), TASK, {"x": BATCHES}, points=2, bn_batches=Drawn(BATCHES))


def test_scan_reads_an_eighth_of_the_batches_for_statistics_again():
    calls = []
    module = Normed().double()
    task = tw.Task(TASK.loss, lambda net, batch: calls.append(net.norm.training) or TASK.predict(net, batch))
    tw.scan(module, line(module), task, {"x": BATCHES[:1]}, points=3, bn_batches=[BATCHES[0]] * 17)
    assert sum(calls) == 3 * 17 + 2


class Iterates(nn.Linear):
    """Uses its weights more often where the bias is large."""

    def forward(self, x):
        for _ in range(1 + int(self.bias.sum())):
            y = super().forward(x)
        return y


@pytest.mark.parametrize(("given", "end"), [(0.0, 4.0), (4.0, 0.0)])
def test_scan_takes_a_network_that_uses_weights_more_or_less_often_elsewhere(given, end):
    modules = [Iterates(4, 3).double(), Iterates(4, 3).double()]
    for module, bias in zip(modules, (given, end), strict=True):
        nn.init.constant_(module.bias, bias)
    a, b = map(tw.Weights.of, modules)
    loss = tw.scan(modules[0], tw.Segment(a, b), TASK, {"x": BATCHES[:1]}, points=2).values["x"]["loss"]
    plain = [F.cross_entropy(F.linear(BATCHES[0][0], m.weight, m.bias), BATCHES[0][1]).item() for m in modules]
    assert loss == pytest.approx(plain)


@pytest.mark.parametrize(("other", "same"), [(1.0, True), (1 + 1e-12, True), (1.5, False)])
def test_agree_sees_a_difference_beside_masked_values(other, same):
    probe = Probe(nn.Linear(2, 2).double())
    logits = torch.tensor([[0.5, -1e9, 0.0], [torch.inf, torch.nan, 2.0]]).double()
    changed = logits.clone()
    changed[0, 0] *= other
    assert agree(probe, logits, changed) == same
