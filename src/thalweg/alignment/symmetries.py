"""Which units of a network can be renumbered without changing its function: found in its graph, proven by trying."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from ..errors import ThalwegError, warn
from ..tasks import Task
from .further_calls import FurtherCalls
from .groups import Group, Proposed, Symmetries, by_hand
from .network_copy import NetworkCopy
from .outputs import CLOSE, STEEP
from .terms import sized, without
from .tracing import Tracing
from .trial import Trial


def symmetries(
    module: nn.Module, task: Task, batch: Any, *, groups: Mapping[str, Mapping[str, Any]] | None = None
) -> Symmetries:
    """Find the groups of hidden units that can be renumbered without changing what a network computes.

    Examples:
        >>> import torch
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
    at once, must leave the outputs in float64 equal to 1e-9, and the gradients to 1e-6. A group that fails is dropped
    and named.

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
    network = NetworkCopy(module, task, batch)
    if groups is None:
        return proven(network, Tracing(network).proposed)
    FurtherCalls(network).include_all([])
    return proven(network, by_hand(groups, network.tensors))


def proven(network: NetworkCopy, proposed: Proposed) -> Symmetries:
    """What passes the proof."""
    trial = Trial(network, proposed)
    groups: dict[str, Group] = {}
    dropped: dict[str, float] = {}
    for name, group in sorted(proposed.groups.items(), key=lambda item: item[0] in proposed.within):
        finer = replace(group, within=proposed.within.get(name, ""))
        if finer.within in {**groups, **proposed.pinned} and trial.error([finer]) <= CLOSE:
            groups[name] = finer
        elif (error := trial.error([group])) <= CLOSE:
            groups[name] = group
        elif proposed.by_hand and trial.error([group], turned := trial.proposed.turned(group)) <= CLOSE:
            groups[name] = group
            trial.proposed = replace(trial.proposed, axes=turned)
        else:
            dropped[name] = error
        if proposed.by_hand and name in groups and group.size > 1 and not trial.matters(group):
            raise ThalwegError(
                f"renumbering is proven by outputs that would change otherwise, and for this batch they do not "
                f"depend on the order of '{name}': give a batch on which its units are active"
            )
    if proposed.by_hand and groups and (names := trial.hidden(groups.values())):
        warn(
            "renumbering is proven by outputs, and for this batch they do not depend on some tensors with axes outside "
            f"of groups= ('{names[0]}'{f' and {len(names) - 1} more' if names[1:] else ''}): where another batch uses "
            "them, an aligned network may compute something else; give one on which they are active, or add these axes "
            "to a group"
        )
    for error_of, close in ((trial.error, CLOSE), (trial.gradient_error, STEEP)):
        if error_of(groups.values()) > close:  # each alone, but not all
            groups, failed = _together(trial, groups, error_of, close)
            dropped |= failed
    if proposed.by_hand and dropped:
        warn(
            f"renumbering {' and '.join(map(repr, dropped))} of groups= changes the outputs or gradients, so it was "
            "left out: a tensor may be missing, or have a wrong axis"
        )
    return _result(trial, {name: groups[name] for name in proposed.groups if name in groups}, dropped)


def _together(
    trial: Trial, groups: Mapping[str, Group], error_of: Callable[[Iterable[Group]], float], close: float
) -> tuple[dict[str, Group], dict[str, float]]:
    """Those of the groups that can be renumbered at once, and the others."""
    kept: list[Group] = []
    dropped: dict[str, float] = {}
    for name, group in groups.items():
        outer = {each.name for each in kept} | {*trial.proposed.pinned}
        group = replace(group, within=group.within if group.within in outer else "")
        if (error := error_of([*kept, group])) <= close:
            kept.append(group)
        else:
            dropped[name] = error
    return {group.name: group for group in kept}, dropped


def _result(trial: Trial, groups: Mapping[str, Group], dropped: Mapping[str, float]) -> Symmetries:
    proposed = trial.proposed
    gone = {*dropped, *proposed.pinned} - {group.within for group in groups.values()}
    axes = {name: tuple(without(term, gone) for term in terms) for name, terms in proposed.axes.items()}
    why = dict(proposed.why)
    for name, error in dropped.items():
        far = f"renumbering '{name}' changed the outputs or gradients, by {100 * error:.3g} % of their size"
        why |= {f"{tensor}[{axis}]": far for tensor, axis in proposed.groups[name].axes}
    axes = {name: terms for name, terms in axes.items() if any(found for term in terms for found in sized(term))}
    return Symmetries(groups, axes, why, dropped, trial.network.layout)
