"""Which units of a network can be renumbered without changing its function: found in its graph, proven by trying."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from math import prod
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..batches import mapped, tensors_in, to_device
from ..errors import ThalwegError, first_line, warn
from ..runtime.rng import seeded
from ..tasks import Task, check_task, describe
from ..weightspace.layout import Layout, named_parameters, named_statistics, unwrapped
from ..weightspace.probe import Probe
from ..weightspace.state import preserved
from ..weightspace.watch import copied
from ..weightspace.weights import Weights
from .axes import INDEXED, Atom, Axes, fresh, leaves, merge_pinned, pin, settle
from .calls import Called, computing, operations, outputs_in, recorded, training
from .operations import HAND, TAKING, each_its_own, named, trace
from .permutation import Term, spread
from .tensors import CONSTANT
from .terms import in_groups, sized, undecided, without
from .trial import CLOSE, Trial, apart, finite

LARGE = 10**7  # entries of all tensors that a network computes for two examples; beyond it, one may do
SMALL = 5 * 10**5  # up to this many, a proof takes more examples
MANY = 32  # at most
KINDS = 8  # of batches that are followed although nothing new takes part in them
HELD = ("PARAMETER", "BUFFER")  # what a module holds, in the words of torch.export


@dataclass(frozen=True)
class Group:
    """Units that are renumbered together.

    Attributes:
        name: The first tensor and axis in which they occur.
        size: How many there are.
        axes: Every tensor and axis in which they occur.
        within: The group, or pinned axis, of which each unit has its own numbering of these, as each head has of its
            channels.
    """

    name: str
    size: int
    axes: tuple[tuple[str, int], ...]
    within: str = ""


@dataclass(frozen=True, eq=False)
class Symmetries:
    """The groups of units that can be renumbered; printed, a table.

    Attributes:
        groups: The groups by name.
        axes: For each tensor with units of some group its axes, as products and sums of groups.
        pinned: For each other axis why it keeps its order.
        dropped: The groups that failed the proof, with how far the outputs were apart.
        layout: The weights of the network.
    """

    groups: Mapping[str, Group]
    axes: Mapping[str, tuple[Term, ...]]
    pinned: Mapping[str, str]
    dropped: Mapping[str, float]
    layout: Layout

    @property
    def within(self) -> dict[str, str]:
        """The groups that are numbered within each unit of another, or of a pinned axis, with that one."""
        return {name: group.within for name, group in self.groups.items() if group.within}

    @property
    def share(self) -> float:
        """The share of the trainable parameters that lie in a tensor which can be renumbered."""
        sizes = dict(zip(self.layout.names, map(prod, self.layout.shapes), strict=True))
        return sum(sizes.get(name, 0) for name in self.axes) / self.layout.size

    def __str__(self) -> str:
        rows = [("group", "size", "axes"), *((g.name, str(g.size), _shortly(g)) for g in self.groups.values())]
        width = max(len(name) for name, _, _ in rows)
        counts = Counter(self.pinned.values())
        first = {why: name for name, why in reversed([*self.pinned.items()])}
        lines = [f"pinned: {first[why]}{f' and {n - 1} more' if n > 1 else ''}: {why}" for why, n in counts.items()]
        head = f"{len(self.groups)} group{'s' * (len(self.groups) != 1)}, {100 * self.share:.1f} % of the parameters"
        table = [f"{name:{width}}  {size:>5}  {axes}" for name, size, axes in rows]
        return "\n".join([head, *table, *lines])


def _shortly(group: Group) -> str:
    shown = ", ".join(f"{name}[{axis}]" for name, axis in group.axes[:3])
    more = f" and {len(group.axes) - 3} more" if len(group.axes) > 3 else ""
    return f"{shown}{more}" + (f"; in each of {group.within}" if group.within else "")


def symmetries(
    module: nn.Module, task: Task, batch: Any, *, groups: Mapping[str, Mapping[str, Any]] | None = None
) -> Symmetries:
    """Find the groups of hidden units that can be renumbered without changing what a network computes.

    Examples:
        >>> import thalweg as tw
        >>> module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> print(symmetries(module, tw.classification(), (torch.randn(2, 4), torch.tensor([0, 1]))))
        1 group, 95.5 % of the parameters
        group         size  axes
        0.weight[0]      8  0.weight[0], 0.bias[0], 2.weight[1]
        pinned: 0.weight[1]: it is an input
        pinned: 2.weight[0] and 1 more: it is an output

    The graph of the network is exported and every operation in it says which axes belong together; what an unknown
    operation touches keeps its order. Each group is then proven: a random renumbering, of every group alone and of all
    at once, must leave the outputs in float64 equal to 1e-9. A group that fails is dropped and named.

    Args:
        module: The network; it is not changed.
        task: How the network is called on a batch, and which of its outputs are used.
        batch: One batch; the first 32 of its examples are used, or fewer where the network is large.
        groups: Groups by hand, for networks that cannot be traced: name -> tensor -> its axis, or several. An axis
            that is longer than the shortest of its group, such as that of a linear layer after a flattened
            convolution, or of the gates of an LSTM, holds several entries per unit. They are proven in the same way.

    Returns:
        What can be renumbered, and what is pinned and why.

    Raises:
        ThalwegError: If the network cannot be traced, does not fit the batch, or draws random numbers in eval mode.
    """
    return Traced(module, task, batch, groups).proven()


Found = tuple[dict[str, Group], dict[str, tuple[Term, ...]]]


class Traced:
    """A private copy of a network in float64 and eval mode, its graph, and the atoms of its axes."""

    trained: Sequence[Called] = ()  # the same in training mode, if it computes something else there
    further: Sequence[Any] = ()  # two examples of each other kind of batch that was followed
    within: Mapping[str, str] = {}  # groups of which each unit of another, or of a pinned axis, may have its own order
    pinned: Mapping[str, Group] = {}  # those axes
    batch: Any  # what a proof computes with
    few: Any  # what the graph is traced with: two examples of the batch, if they fit
    entries: int  # of all tensors that the network computed last

    def __init__(
        self,
        module: nn.Module,
        task: Task,
        batch: Any,
        groups: Mapping[str, Any] | None = None,
        whole_batch: bool = False,
        weights: Weights | None = None,
        others: Iterable[Any] = (),
    ):
        check_task(task)
        self.task, self.layout = task, Layout.of(module)
        self.net, self.own = (unwrapped(Probe(module).module) for _ in range(2))
        if weights is not None:
            self.layout.check(weights.layout, "the network", "a")
            weights.load_into(self.net)
        for parameter in self.net.parameters():
            parameter.grad = None
        self.net.double().eval()
        parameters = named_parameters(self.net)
        moving = {name: parameters[name] for name in self.layout.names} | named_statistics(self.net)
        self.tensors = {name: tensor for name, tensor in moving.items() if tensor.is_floating_point()}
        outputs = self._fit(batch)
        self.example = self._converted(batch) if whole_batch else self.few
        if not finite(outputs):
            raise ThalwegError(
                "renumbering is proven by outputs that stay the same, and for this batch none is a finite number: give "
                "a batch with examples, without NaN, and a network with finite weights"
            )
        if apart(outputs, self.outputs(seed=1)) > CLOSE:
            raise ThalwegError(
                "a network must compute the same in eval mode whenever it is called, so that renumbering can be "
                "proven, and this one does not; it draws random numbers or changes when it is called: turn that off in "
                "eval mode"
            )
        self.program: Any = None
        self.seen: dict[Any, Any] = {}
        self.why: dict[str, str] = {}
        self.taken: set[int] = set()
        self.groups, self.axes = self._by_hand(groups) if groups is not None else self._by_graph(others)
        del self.own

    def _prepared(self, batch: Any) -> Any:
        """The batch in float64, after the network was called with it as it is: caches outside of it, of positions, say,
        must not be filled in float64.
        """
        for mode in (nullcontext, training):
            with suppress(Exception), seeded(0), torch.no_grad(), preserved(self.own), mode(self.own.eval()):
                self.task.predictions(self.own, mapped(to_device(batch, next(self.own.parameters()).device), copied))
        return self._converted(batch)

    def _converted(self, batch: Any) -> Any:
        """The batch in float64, where the network is."""
        batch = to_device(batch, next(self.net.parameters()).device)
        return mapped(batch, lambda t: t.double() if isinstance(t, Tensor) and t.is_floating_point() else t)

    def _fit(self, batch: Any) -> list[Tensor]:
        """The outputs for what a proof computes with: two examples of the batch, or all of it where the task does not
        take them; more, where that costs little, since a unit may be inactive on two; one, where that is much faster
        and the network computes each example alone.
        """
        outputs = self._fitting(_first(batch, 2), batch)
        self.few, entries = self.batch, max(self.entries, 1)
        examples = 1 if entries > LARGE else max(2, min(2 * SMALL // entries, MANY))
        if examples != 2:
            self.batch = self._prepared(_first(batch, examples))
            with suppress(Exception):
                found = self.outputs()
                same = [two[: len(own)] if own.ndim else two for two, own in zip(outputs, found, strict=True)]
                if finite(found) and (examples > 2 or apart(same, found) <= CLOSE):
                    return found
            self.batch = self.few
        return outputs

    def _fitting(self, *batches: Any) -> list[Tensor]:
        """The outputs for the first batch that the network takes."""
        for batch in batches:
            self.batch = self._prepared(batch)
            try:
                return self.outputs()
            except Exception as error:  # whatever a network says about a batch that is too small, or of another kind
                failure = error
        if isinstance(failure, ThalwegError):
            raise failure
        why = f"{type(failure).__name__}: {first_line(failure)}"
        raise ThalwegError(
            f"the network must take the batch as its task calls it, in float64, and failed with {why}: check the "
            "batch and the task"
        ) from failure

    def outputs(self, seed: int = 0) -> list[Tensor]:
        """The task's outputs for the batch, and those in training of a network with parts for that alone."""
        batch = mapped(self.batch, copied)
        with computing(seed) as computed, torch.no_grad():
            made = self.task.predictions(self.net, batch)[0]
            found = outputs_in(made)
            self.entries = computed.entries
            for other in self.further:
                found += outputs_in(self.task.predictions(self.net, mapped(other, copied))[0])
            with training(self.net) if self.trained else nullcontext():
                found += [tensor for called in self.trained for tensor in called(*called.inputs())]
        if not found:
            raise ThalwegError(
                f"renumbering is proven by the outputs of the task, and its predict returned {describe(made)}, in "
                "which no tensor was found: return tensors, or a tuple or dict of them"
            )
        return [tensor.detach().clone() for tensor in found]

    def _by_hand(self, groups: Mapping[str, Any]) -> Found:
        axes: dict[str, list[Term]] = {name: [("fixed", n) for n in t.shape] for name, t in self.tensors.items()}
        for group, members in groups.items():
            given = members.items() if isinstance(members, Mapping) else [(members, None)]
            places = [(name, axis) for name, several in given for axis in _several(several)]
            for name, axis in places or [("", None)]:
                if name not in axes or not isinstance(axis, int) or not -len(axes[name]) <= axis < len(axes[name]):
                    rule = "a group maps trainable tensors, or batch-norm statistics, to their axes"
                    raise ThalwegError(f"{rule}; '{group}' has '{name}': {axis!r}, which is none of this network")
            size = min(axes[name][axis][1] for name, axis in places)
            for name, axis in places:
                rest, odd = divmod(axes[name][axis][1], size)
                if odd or axes[name][axis][0] != "fixed":
                    rule = "every axis is in one group and is a multiple of its shortest"
                    raise ThalwegError(f"{rule}; axis {axis} of '{name}' in '{group}' is not: correct groups=")
                unit = ("group", size, group)
                axes[name][axis] = unit if rest == 1 else ("product", rest * size, unit, ("fixed", rest))
        self.why = {f"{n}[{k}]": "not in any group" for n in axes for k, t in enumerate(axes[n]) if t[0] == "fixed"}
        return _grouped({name: tuple(each) for name, each in axes.items()})

    def _turned(self, group: Group) -> dict[str, tuple[Term, ...]]:
        """The axes with the units of a group given by hand inside their other entries, as in the gates of an LSTM."""

        def turn(term: Term) -> Term:
            return (*term[:2], term[3], term[2]) if term[0] == "product" and term[2][2:] == (group.name,) else term

        return {name: tuple(map(turn, terms)) for name, terms in self.axes.items()}

    def _by_graph(self, others: Iterable[Any]) -> Found:
        atoms = {name: fresh(tensor.shape) for name, tensor in self.tensors.items()}
        self.called, self.program = self._exported(self.example)
        self._follow(self.called, self.program, atoms)
        self._follow_training(self.called, self.few, atoms)
        self._follow_others(others, atoms)
        for leaf in self._idle(atoms):
            pin(leaf, "it is not used on this batch")
        return self._named(atoms)

    def _exported(self, batch: Any) -> tuple[Called, Any]:
        try:
            called = recorded(self.net, self.task, batch)
            return called, called.exported()
        except Exception as error:
            why = f"{type(error).__name__}: {first_line(error)[:200]}"
            if "DataDependent" in why:
                why = "what it does depends on values of tensors, as in `if x.sum() > 0`, `assert` or `.item()`"
            raise ThalwegError(f"the network cannot be traced by torch.export ({why}): {HAND}") from error

    def _follow_training(self, usual: Called, batch: Any, atoms: Mapping[str, Axes]) -> None:
        """The same call in training mode, if it may compute something else."""
        if not (usual.spare or self._idle(atoms) or self._trains_otherwise(batch)):
            return
        before = self.trained
        with suppress(Exception), training(self.net):
            called = recorded(self.net, self.task, batch)
            if called.made != usual.made:  # then all of it has an order, whether this task uses it or not
                called.used = None
            self._follow(called, called.exported(), atoms)
            self.trained = [*before, called]
        if apart(self.outputs(), self.outputs(seed=1)) > CLOSE:
            self.trained = before

    def _follow_others(self, batches: Iterable[Any], atoms: Mapping[str, Axes]) -> None:
        """Calls with batches of other kinds: of all that are in a list, and where parameters were not used so far, of
        all others as well, until they are.
        """
        idle, listed = self._unused(atoms), isinstance(batches, Sequence)
        if not (idle or listed):
            return
        kinds, calls, batch = {_kind(self.few)}, [self._operations(self.few)], self.batch
        with seeded(0, batches):
            for other in batches:
                kind = _kind(_first(other, 2))
                if kind in kinds or not (idle or (listed and len(kinds) < KINDS)):
                    continue
                kinds.add(kind)
                try:
                    self._fitting(_first(other, 2), other)
                    few = self.batch
                finally:
                    self.batch = batch
                noted = self._operations(few)
                new = idle & _parameters(noted) if noted else idle
                if (noted and noted in calls) or not (new or len(calls) < KINDS):
                    continue
                calls.append(noted)
                called, program = self._exported(few)
                self._follow(called, program, atoms)
                self.further = [*self.further, few]
                self._follow_training(called, few, atoms)
                idle = self._unused(atoms)
                if not (idle or listed):
                    return
        if idle and batches:
            names = [name for k, (name, _) in enumerate(self.net.named_parameters()) if k in idle]
            warn(
                "parameters that took no part in any of the batches, or not as a whole, keep their order "
                f"('{names[0]}'{f' and {len(names) - 1} more' if names[1:] else ''}): where another call uses them, an "
                "aligned network may compute something else; give batches that use them, or groups= by hand"
            )

    def _operations(self, batch: Any) -> list[Any]:
        """None where they cannot be noted."""
        with suppress(Exception):
            return operations(self.net, self.task, batch)
        return []

    def _unused(self, atoms: Mapping[str, Axes]) -> set[int]:
        """The parameters that no call has used as a whole, by number."""
        idle = {id(leaf) for leaf in self._idle(atoms) if not leaf.pinned}
        partly = {
            id(self.tensors[name])
            for name, axes in atoms.items()
            if any(id(leaf) in idle for axis in axes for leaf in leaves(axis))
        }
        every = enumerate(self.net.parameters())
        return {k for k, parameter in every if id(parameter) in partly or id(parameter) not in self.taken}

    def _trains_otherwise(self, batch: Any) -> bool:
        """Whether the network computes something else in training, with auxiliary heads, say."""
        with suppress(Exception):
            usual = operations(self.net, self.task, batch)
            with training(self.net):
                return operations(self.net, self.task, batch) != usual
        return True

    def _follow(self, called: Called, program: Any, atoms: Mapping[str, Axes]) -> None:
        """Join and pin the axes of all tensors as the operations of a graph say."""
        names = {id(tensor): name for name, tensor in self.tensors.items()}
        inputs: list[Any] = []
        nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
        for spec, node in zip(program.graph_signature.input_specs, nodes, strict=True):
            held: Any = attrgetter(spec.target)(called) if spec.kind.name in HELD else None
            name = names.get(id(held))
            if name:
                if not self.seen:
                    each_its_own(node, atoms[name])
                inputs.append(atoms[name])
            elif isinstance(node.meta.get("val"), Tensor):
                why = _kept(spec)
                constant = held is not None and spec.persistent is False  # other buffers may change in training
                inputs.append(_fixed(held, why) if constant else fresh(node.meta["val"].shape, why))
            else:
                inputs.append(getattr(spec.arg, "value", None))
        for axes in trace(program.graph_module, inputs, self.seen):
            for axis in axes if isinstance(axes, Axes) else ():
                pin(axis, "it is an output")
        for spec, node in zip(program.graph_signature.input_specs, nodes, strict=True):
            if spec.kind.name in HELD and node.users:
                self.taken.add(id(attrgetter(spec.target)(called)))

    def _idle(self, atoms: Mapping[str, Axes]) -> list[Atom]:
        """Units that no operation gets, as those of `weight[k:]` where only `weight[:k]` is used."""
        given = {each for node in self.seen if named(node) not in TAKING for each in node.all_input_nodes}
        values = tree_leaves([self.seen[node] for node in given], is_leaf=lambda value: isinstance(value, Axes))
        used = {id(leaf) for axes in values if isinstance(axes, Axes) for axis in axes for leaf in leaves(axis)}
        every = [leaf for axes in atoms.values() for axis in axes for leaf in leaves(axis)]
        return [leaf for leaf in every if id(leaf) not in used]

    def state(self, weights: Weights) -> list[Tensor]:
        """What the graph takes before its inputs, with these weights."""
        weights.load_into(self.net)
        specs = [spec for spec in self.program.graph_signature.input_specs if spec.target is not None]
        found = [
            self.program.constants[spec.target] if spec.kind.name == "CONSTANT_TENSOR"
            else attrgetter(spec.target)(self.called)
            for spec in specs
        ]  # fmt: skip
        return [tensor.detach().clone() for tensor in found]

    def arguments(self, batch: Any) -> list[Tensor] | None:
        """The inputs of the graph for a batch; None for one of another shape."""
        return self.called.arguments(self.task, self._converted(batch))

    def _named(self, atoms: Mapping[str, Axes]) -> Found:
        while loose := next((atom for axes in atoms.values() for atom in undecided(axes)), None):
            settle(loose)
        names: dict[int, str] = {}
        pinned: dict[int, str] = {}
        for tensor, axes in atoms.items():
            for k, axis in enumerate(axes):
                merge_pinned(axis)
                several = [leaf for leaf in leaves(axis) if leaf.size > 1]
                for known, still in ((names, ""), (pinned, "pinned ")):
                    new = [leaf for leaf in several if bool(leaf.pinned) == bool(still) and id(leaf) not in known]
                    for number, leaf in enumerate(dict.fromkeys(new), start=1):
                        known[id(leaf)] = f"{still}{tensor}[{k}]" + (f".{number}" if number > 1 else "")
                if axis.size > 1 and all(leaf.pinned for leaf in several):
                    self.why[f"{tensor}[{k}]"] = several[0].pinned if several else INDEXED
        self.terms = lambda axes: in_groups(axes, names | pinned)
        self.within = self._within(names.values())
        labels = names | {leaf: name for leaf, name in pinned.items() if name in self.within.values()}
        self.terms = lambda axes: in_groups(axes, labels)
        groups, found = _grouped({name: self.terms(axes) for name, axes in atoms.items()})
        self.pinned = {name: groups.pop(name) for name in labels.values() if name in pinned.values()}
        return groups, found

    def _within(self, groups: Iterable[str]) -> dict[str, str]:
        """Groups that occur only next to another one, or next to a pinned axis, in every tensor of the graph: each of
        its units may have a numbering of its own.
        """
        held = tree_leaves([*self.seen.values()], is_leaf=lambda value: isinstance(value, Axes))
        blocks = [
            Counter(filter(None, labels))
            for axes in {self.terms(value) for value in held if isinstance(value, Axes)}
            for _, labels in spread(torch.empty([term[1] for term in axes], device="meta"), axes)
        ]
        order = [*groups]
        found: dict[str, str] = {}
        pinned: dict[str, str] = {}
        for name in order:
            mine = [labels for labels in blocks if name in labels]
            once = [other for labels in mine[:1] for other in labels if all(each[other] == 1 for each in mine)]
            outer = {*once} - {name}
            moving = outer & {*order}
            alone = [other for other in moving if any(other in labels and name not in labels for labels in blocks)]
            before = [other for other in moving if order.index(other) < order.index(name)]
            found |= {name: min(alone or before)} if alone or before else {}
            pinned |= {name: min(outer - moving)} if outer - moving else {}
        found = {name: outer for name, outer in found.items() if outer not in found}
        return {name: outer for name, outer in pinned.items() if name not in {*found.values()}} | found

    def proven(self) -> Symmetries:
        """What passes the proof."""
        trial = Trial(self)
        groups: dict[str, Group] = {}
        dropped: dict[str, float] = {}
        for name, group in sorted(self.groups.items(), key=lambda item: item[0] in self.within):
            finer = replace(group, within=self.within.get(name, ""))
            if finer.within in {**groups, **self.pinned} and trial.error([finer]) <= CLOSE:
                groups[name] = finer
            elif (error := trial.error([group])) <= CLOSE:
                groups[name] = group
            elif not self.seen and trial.error([group], self._turned(group)) <= CLOSE:
                groups[name], self.axes = group, self._turned(group)
            else:
                dropped[name] = error
            if not self.seen and name in groups and group.size > 1 and not trial.matters(group):
                raise ThalwegError(
                    f"renumbering is proven by outputs that would change otherwise, and for this batch they do not "
                    f"depend on the order of '{name}': give a batch on which its units are active"
                )
        if trial.error(groups.values()) > CLOSE:  # each alone, but not all
            kept: list[Group] = []
            for name, group in groups.items():
                outer = {each.name for each in kept} | {*self.pinned}
                group = replace(group, within=group.within if group.within in outer else "")
                if (error := trial.error([*kept, group])) <= CLOSE:
                    kept.append(group)
                else:
                    dropped[name] = error
            groups = {group.name: group for group in kept}
        return self._result({name: groups[name] for name in self.groups if name in groups}, dropped)

    def _result(self, groups: Mapping[str, Group], dropped: Mapping[str, float]) -> Symmetries:
        gone = {*dropped, *self.pinned} - {group.within for group in groups.values()}
        axes = {name: tuple(without(term, gone) for term in terms) for name, terms in self.axes.items()}
        for name, error in dropped.items():
            far = f"renumbering '{name}' changed the outputs, by {error:.1g} of their size"
            self.why |= {f"{tensor}[{axis}]": far for tensor, axis in self.groups[name].axes}
        axes = {name: terms for name, terms in axes.items() if any(found for term in terms for found in sized(term))}
        return Symmetries(groups, axes, self.why, dropped, self.layout)


def _first(batch: Any, count: int) -> Any:
    """The first examples of a batch; what does not have as many entries as its first tensor, or is sparse, is kept."""
    size = next((tensor.shape[0] for tensor in tensors_in(batch) if tensor.ndim), 0)
    several = [id(t) for t in tensors_in(batch) if t.ndim and t.shape[0] == size and t.layout is torch.strided]
    return mapped(batch, lambda t: t[:count] if id(t) in several else t)


def _kind(batch: Any) -> str:
    """What a graph may depend on: shapes, and whatever is not a tensor."""
    return repr(mapped(batch, lambda item: tuple(item.shape) if isinstance(item, Tensor) else type(item).__name__))


def _parameters(noted: Sequence[Any]) -> set[int]:
    """The numbers of the tensors in operations, of which the first are those of the parameters."""
    return {item[0] for _, items in noted[:-1] for item in items if isinstance(item, tuple)}


def _kept(spec: Any) -> str:
    """Why what a graph is given keeps its order."""
    if spec.target is None:
        return "it is an input"
    own = spec.target.removeprefix("net.")
    return f"'{own}' is not trained and keeps its order" if spec.kind.name in HELD else CONSTANT


def _fixed(value: Tensor, why: str) -> Axes:
    """The axes of a constant, pinned where its values differ along them."""
    rows = [value.movedim(k, 0) for k in range(value.ndim)]
    return Axes(Atom(len(each), pinned=why if bool((each != each[:1]).any()) else "") for each in rows)


def _several(given: Any) -> tuple[Any, ...]:
    return tuple(given) if isinstance(given, list | tuple) else (given,)


def _grouped(axes: dict[str, tuple[Term, ...]]) -> tuple[dict[str, Group], dict[str, tuple[Term, ...]]]:
    """The groups that occur in axes, in the order in which they do."""
    places: dict[str, dict[tuple[str, int], int]] = {}
    for tensor, terms in axes.items():
        for k, term in enumerate(terms):
            for name, size in sized(term):
                places.setdefault(name, {})[tensor, k] = size
    groups = {name: Group(name, next(iter(found.values())), tuple(found)) for name, found in places.items()}
    held = {tensor for group in groups.values() for tensor, _ in group.axes}
    return groups, {name: terms for name, terms in axes.items() if name in held}
