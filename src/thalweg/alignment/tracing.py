"""Finding groups of units in the graphs of a network: axes that its operations join belong together."""

from collections import Counter
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from ..errors import ThalwegError, first_line
from ..weightspace.layout import named_buffers
from ..weightspace.weights import Weights
from .axes import INDEXED, Atom, Axes, fresh, leaves, merge_pinned, pin, pin_all, product, settle, total, unify
from .calls import Called, recorded, scripted_parts
from .further_calls import RANDOM_PATH, FurtherCalls, warn_of_training
from .groups import Proposed, grouped
from .layers import GATES
from .modes import training
from .network_copy import NetworkCopy
from .operations import HAND, Seen, each_its_own, named, takes_part, trace
from .permutation import Term, spread
from .tensors import CONSTANT, axes_in
from .terms import in_groups, undecided

HELD = ("PARAMETER", "BUFFER")  # what a module holds, in the words of torch.export
WRITTEN = ("PARAMETER_MUTATION", "BUFFER_MUTATION")
KEPT = "'{}' is not trained and keeps its order"


class Tracing:
    """The graphs of a network, and the atoms of the axes of its tensors.

    Attributes:
        network: The network.
        atoms: The axes of its tensors.
        saved: The axes of its other buffers that are saved.
        seen: What was followed in the graphs.
        called: The call that was traced first.
        program: Its graph.
        proposed: The groups that follow.
    """

    def __init__(self, network: NetworkCopy, others: Iterable[Any] = (), example: Any = None):
        self.network, self.calls = network, FurtherCalls(network)
        self.atoms = {name: fresh(tensor.shape) for name, tensor in network.tensors.items()}
        others_saved = {n: buffer for n, buffer in named_buffers(network.net).items() if n not in self.atoms}
        self.saved = {name: _saved(buffer, KEPT.format(name)) for name, buffer in others_saved.items()}
        self.names = {id(tensor): name for name, tensor in (network.tensors | others_saved).items()}
        self.seen = Seen()
        self.taken: set[int] = set()
        self.called, self.program = self._exported(network.few if example is None else network.converted(example))
        self._follow(self.called, self.program)
        self._follow_training(self.called, network.few)
        self.calls.follow_kinds(others, self._unused, self._follow_batch)
        pin_all(self._idle(), "it is not used on this batch")
        self.proposed = self._proposed()

    def _exported(self, batch: Any) -> tuple[Called, Any]:
        try:
            called = recorded(self.network.net, self.network.task, batch)
            return called, called.exported()
        except Exception as error:
            why, advice = f"{type(error).__name__}: {first_line(error)[:200]}", HAND
            if scripted := scripted_parts(self.network.net):
                first = next(iter(scripted))
                part = f"'{first}'" if first else "it"
                why = f"{part} is a torch.jit module, into which it cannot look"
                advice = f"give the network as it was before torch.jit.script or torch.jit.trace, or {HAND}"
            elif "DataDependent" in why:
                why = "what it does depends on values of tensors, as in `if x.sum() > 0`, `assert` or `.item()`"
            raise ThalwegError(f"the network cannot be traced by torch.export ({why}): {advice}") from error

    def _follow_batch(self, batch: Any) -> None:
        called, program = self._exported(batch)
        self._follow(called, program)
        self._follow_training(called, batch)

    def _follow_training(self, usual: Called, batch: Any) -> None:
        """The same call in training mode, if it may compute something else. One that cannot be traced is still compared
        in the proof.
        """
        by_chance = self.calls.takes_random_paths(batch)
        if not (usual.spare or self._idle() or by_chance or self.calls.trains_otherwise(batch)):
            return
        calls, why = self.calls.include_training(batch), ""
        checked = not calls
        for called in calls:
            checked |= called in self.network.trained
            try:
                with training(self.network.net, called.every):
                    self._follow(called, called.exported())
                checked = True
            except Exception as error:
                why = f"{type(error).__name__}: {first_line(error)[:200]}"
        if not checked and not self.calls.skips_at_random(batch):
            warn_of_training(f"it draws random numbers there and cannot be traced ({why})")
        elif by_chance:
            warn_of_training(RANDOM_PATH)

    def _follow(self, called: Called, program: Any) -> None:
        """Join and pin the axes of all tensors as the operations of a graph say."""
        inputs: list[Any] = []
        nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
        for spec, node in zip(program.graph_signature.input_specs, nodes, strict=True):
            held: Any = attrgetter(spec.target)(called) if spec.kind.name in HELD else None
            name = self.names.get(id(held), "")
            if name in self.atoms and not self.seen.values:
                each_its_own(node, self.atoms[name])
            if name:
                inputs.append(self._every[name])
            elif isinstance(node.meta.get("val"), Tensor):
                why = _kept(spec)
                constant = held is not None and spec.persistent is False
                inputs.append(_fixed(held, why) if constant else fresh(node.meta["val"].shape, why))
            else:
                inputs.append(getattr(spec.arg, "value", None))
        outputs = zip(program.graph_signature.output_specs, trace(program.graph_module, inputs, self.seen), strict=True)
        for spec, axes in outputs:
            written = attrgetter(spec.target)(called) if spec.kind.name in WRITTEN else None
            same = self._every.get(self.names.get(id(written), ""), ())
            for k, axis in enumerate(axes if isinstance(axes, Axes) else ()):
                if same:
                    unify(axis, same[k])
                else:
                    pin(axis, "it is an output")
        for spec, node in zip(program.graph_signature.input_specs, nodes, strict=True):
            if spec.kind.name in HELD and node.users:
                self.taken.add(id(attrgetter(spec.target)(called)))

    @property
    def _every(self) -> dict[str, Axes]:
        return self.atoms | self.saved

    def _idle(self) -> list[Atom]:
        """Units that every operation only hands on, as those of `weight[k:]` where only `weight[:k]` is used, or of a
        chunk that is not.
        """
        values, used = self.seen.values, set[int]()
        for node in values:
            if not takes_part(node):
                handed_on = values[node][0] if named(node) in GATES else values[node]  # lower layers are used inside
                used |= _leaves_in([values[each] for each in node.all_input_nodes]) - _leaves_in(handed_on)
        every = [leaf for axes in self.atoms.values() for axis in axes for leaf in leaves(axis)]
        return [leaf for leaf in every if id(leaf) not in used and not leaf.pinned]

    def _unused(self) -> set[int]:
        """The parameters that no call has used as a whole, by number."""
        idle = {id(leaf) for leaf in self._idle()}
        partly = {
            id(self.network.tensors[name])
            for name, axes in self.atoms.items()
            if any(id(leaf) in idle for axis in axes for leaf in leaves(axis))
        }
        every = enumerate(self.network.net.parameters())
        return {k for k, parameter in every if id(parameter) in partly or id(parameter) not in self.taken}

    def state(self, weights: Weights) -> list[Tensor]:
        """What the graph takes before its inputs, with these weights."""
        weights.load_into(self.network.net)
        specs = [spec for spec in self.program.graph_signature.input_specs if spec.target is not None]
        found = [
            self.program.constants[spec.target] if spec.kind.name == "CONSTANT_TENSOR"
            else attrgetter(spec.target)(self.called)
            for spec in specs
        ]  # fmt: skip
        return [tensor.detach().clone() for tensor in found]

    def arguments(self, batch: Any) -> list[Tensor] | None:
        """The inputs of the graph for a batch; None for one of another shape."""
        return self.called.arguments(self.network.task, self.network.converted(batch))

    def _proposed(self) -> Proposed:
        while loose := next((atom for axes in self._every.values() for atom in undecided(axes)), None):
            settle(loose)
        names: dict[int, str] = {}
        pinned: dict[int, str] = {}
        why: dict[str, str] = {}
        for tensor, axes in self.atoms.items():
            for k, axis in enumerate(axes):
                merge_pinned(axis)
                several = [leaf for leaf in leaves(axis) if leaf.size > 1]
                for known, still in ((names, ""), (pinned, "pinned ")):
                    new = [leaf for leaf in several if bool(leaf.pinned) == bool(still) and id(leaf) not in known]
                    for number, leaf in enumerate(dict.fromkeys(new), start=1):
                        known[id(leaf)] = f"{still}{tensor}[{k}]" + (f".{number}" if number > 1 else "")
                if axis.size > 1 and all(leaf.pinned for leaf in several):
                    why[f"{tensor}[{k}]"] = several[0].pinned if several else INDEXED
        self.labels: Mapping[int, str] = names | pinned
        within = self._within(names.values())
        self.labels = names | {leaf: name for leaf, name in pinned.items() if name in within.values()}
        groups, found = grouped({name: self.terms(axes) for name, axes in self._every.items()})
        outer = {name: groups.pop(name) for name in self.labels.values() if name in pinned.values()}
        return Proposed(groups, found, why, within, outer)

    def terms(self, axes: Axes) -> tuple[Term, ...]:
        """The axes of a tensor as products and sums of groups."""
        return in_groups(axes, self.labels)

    def _within(self, groups: Iterable[str]) -> dict[str, str]:
        """Groups that occur only next to another one, or to a pinned axis, in every tensor of the graph, and are not
        mixed along it: each of its units may have a numbering of its own.
        """
        blocks = [
            Counter(filter(None, labels))
            for axes in {self.terms(value) for value in axes_in([*self.seen.values.values()])}
            for _, labels in spread(torch.empty([term[1] for term in axes], device="meta"), axes)
        ]
        mixed = {
            (self.labels.get(id(inner)), self.labels.get(id(leaf)))
            for outer, kept in self.seen.mixing
            for leaf in leaves(outer)
            for axis in kept
            for inner in leaves(axis)
        }
        order = [*groups]
        found: dict[str, str] = {}
        pinned: dict[str, str] = {}
        for name in order:
            mine = [labels for labels in blocks if name in labels]
            once = [other for labels in mine[:1] for other in labels if all(each[other] == 1 for each in mine)]
            outer = {other for other in once if other != name and (name, other) not in mixed}
            moving = outer & {*order}
            alone = [other for other in moving if any(other in labels and name not in labels for labels in blocks)]
            before = [other for other in moving if order.index(other) < order.index(name)]
            found |= {name: min(alone or before)} if alone or before else {}
            pinned |= {name: min(outer - moving)} if outer - moving else {}
        found = {name: outer for name, outer in found.items() if outer not in found}
        return {name: outer for name, outer in pinned.items() if name not in {*found.values()}} | found


def _leaves_in(values: Any) -> set[int]:
    """The atoms in axes, by id."""
    return {id(leaf) for axes in axes_in(values) for axis in axes for leaf in leaves(axis)}


def _kept(spec: Any) -> str:
    """Why what a graph is given keeps its order."""
    if spec.target is None:
        return "it is an input"
    return KEPT.format(spec.target.removeprefix("net.")) if spec.kind.name in HELD else CONSTANT


def _saved(buffer: Tensor, why: str) -> Axes:
    """Those of a constant, such as a mask of positions; but if all values are equal, they may be initial values that
    training changes, and every axis is pinned.
    """
    found = _fixed(buffer, why)
    return found if any(leaf.pinned for axis in found for leaf in leaves(axis)) else fresh(buffer.shape, why)


def _fixed(value: Tensor, why: str) -> Axes:
    """The axes of a constant, pinned where its values differ along them, or cannot be looked at."""
    if value.layout is not torch.strided or value.is_nested or value.is_quantized or not value.numel():
        return fresh(value.shape, "" if not value.numel() else why)
    return Axes(_repeating(value.movedim(k, 0), why) for k in range(value.ndim))


def _repeating(rows: Tensor, why: str) -> Atom:
    """An axis of which every so many rows are equal, as of the masks of autoregressive flows: these have an order among
    themselves. The longest beginning that is an end too says how many, in a single pass.
    """
    plain = rows.resolve_conj().resolve_neg().reshape(len(rows), -1).clone(memory_format=torch.contiguous_format)
    kinds, same, ends = [row.tobytes() for row in plain.view(torch.uint8).cpu().numpy()], 0, [0]
    for kind in kinds[1:]:
        while same and kind != kinds[same]:
            same = ends[same - 1]
        same += kind == kinds[same]
        ends.append(same)
    step = len(rows) - same if 2 * same >= len(rows) else len(rows)
    repeated, rest = product([Atom(len(rows) // step), Atom(step, pinned=why)]), len(rows) % step
    return total([repeated, *fresh([rest] if rest else [], why)])
