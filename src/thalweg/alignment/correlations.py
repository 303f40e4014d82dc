"""The correlation of the units of two networks, over the activations that each computes for the same batches."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, fx
from torch._C._functorch import is_batchedtensor

from ..batches import Batches
from ..errors import ThalwegError
from ..runtime.rng import seeded
from ..weightspace.weights import Weights
from . import contractions, layers
from .axes import Axes
from .groups import Symmetries
from .matching import Pair
from .modes import computing
from .operations import DECOMPOSED, RULES, named
from .permutation import Block, spread
from .tracing import Tracing

CONTRACTING = (
    layers.linear, layers.bilinear, layers.attention, layers.convolution, layers.recurrent, layers.cell,
    contractions.einsum, contractions.matmul, contractions.distances,
)  # fmt: skip
CONTRACTIONS = {name for name, rule in RULES.items() if rule in CONTRACTING}  # what units are for
ROUNDING = 1e-10  # of the squares: a variance below it is none
Place = tuple[fx.Node, int]  # a node, and which of its blocks


class Running(fx.Interpreter):
    """Runs a graph, and the blocks under no_grad or autocast inside it, and shows what each node gives."""

    def __init__(self, graph: fx.GraphModule, show: Callable[[fx.Node, Any], None]):
        super().__init__(graph)
        self.show = show

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.show(n, value)
        return value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        inner = next((k for k, value in enumerate(args) if isinstance(value, fx.GraphModule)), None)
        if inner is None or not str(getattr(target, "__name__", "")).startswith("wrap_with"):
            return super().call_function(target, args, kwargs)
        return Running(args[inner], self.show).run(*args[inner + 1 :])


def _contracted(node: fx.Node) -> bool:
    """Whether an operation that contracts units, or is made of such, gets what a node gives, also one in a block under
    no_grad.
    """
    for user in node.users:
        if any(named(part) in CONTRACTIONS for part in (user, *user.meta.get(DECOMPOSED, ()))):
            return True
        owner: Any = user.graph.owning_module
        for k, block in enumerate(user.args if named(user).startswith("wrap_with") else ()):
            if isinstance(block, fx.Node) and block.op == "get_attr":
                waiting = getattr(owner, str(block.target)).graph.find_nodes(op="placeholder")
                given = zip(user.args[k + 1 :], waiting, strict=False)
                if any(each is node and _contracted(inside) for each, inside in given):
                    return True
    return False


class Correlations:
    """The correlation of the units of two networks, from running sums over one pass of the batches.

    They are given to the matching as if they were weights: the identity for one network, and for the other the
    correlations of its units with those of the first.
    """

    def __init__(self, tracing: Tracing, found: Symmetries, a: Weights, b: Weights, batches: Batches):
        if not tracing.called.inputs():
            raise ThalwegError(
                "activations are matched over the tensors of batches, and the network gets none that is in a tuple, "
                "list, dict or dataclass: make batches of these, or use by='weights'"
            )
        self.tracing, self.found, self.labels = tracing, found, {*found.groups, *found.within.values()}
        self.sums: dict[Place, tuple[list[Tensor], list[int], tuple[str, ...]]] = {}
        self.seen: dict[Place, Block] = {}
        self.left_out = 0
        self._add_all([tracing.state(point) for point in (a, b)], batches)

    def note(self, node: fx.Node, value: Any) -> None:
        axes = self.tracing.seen.values.get(node)
        if node.op != "call_function" or not isinstance(axes, Axes) or not _contracted(node):
            return
        if value.is_floating_point() and not is_batchedtensor(value):
            for k, (view, labels) in enumerate(spread(value, self.tracing.terms(axes))):
                kept = tuple(label if label in self.labels else "" for label in labels)
                self.seen |= {(node, k): (view, kept)} if {*kept} & {*self.found.groups} else {}

    def _add_all(self, states: Sequence[Sequence[Tensor]], batches: Batches) -> None:
        used = 0
        with seeded(0, batches), torch.no_grad():
            for batch in batches:
                inputs = self.tracing.arguments(batch)
                if inputs is None:
                    self.left_out += 1
                else:
                    used += 1
                    self._add(*(self._run(state, inputs) for state in states))
        if not used:
            raise ThalwegError(
                "activations are matched over batches that are called as the first is, and in another pass none was: "
                "give batches with the same strings, numbers and objects beside their tensors, or use by='weights'"
            )
        if not all(tensor.isfinite().all() for sums, _, _ in self.sums.values() for tensor in sums):
            raise ThalwegError(
                "only finite activations can be matched, and some are not: look for NaN in batches, a and b, or use "
                "by='weights'"
            )

    def pairs(self) -> list[Pair]:
        """The correlations as blocks of two networks."""
        return [self._pair(*sums) for sums in self.sums.values()]

    def _run(self, state: Sequence[Any], inputs: Sequence[Tensor]) -> dict[Place, Block]:
        self.seen = {}
        with computing():
            Running(self.tracing.program.graph_module, self.note).run(*state, *inputs)
        return self.seen

    def _add(self, one: Mapping[Place, Block], two: Mapping[Place, Block]) -> None:
        for key, (view, labels) in one.items():
            x, y = (_units(block, labels) for block in (view, two[key][0]))
            count = torch.tensor(float(x.shape[1]), device="cpu")
            new = [count, x.sum(1), y.sum(1), (x * x).sum(1), (y * y).sum(1), x @ y.T]
            shape = [view.shape[k] for k, label in enumerate(labels) if label]
            old = self.sums.get(key, (new, shape, labels))[0]
            self.sums[key] = ([p + q for p, q in zip(old, new, strict=True)] if old is not new else new, shape, labels)

    @staticmethod
    def _pair(sums: Sequence[Tensor], shape: Sequence[int], labels: tuple[str, ...]) -> Pair:
        count, x, y, xx, yy, xy = sums
        one, two = (
            torch.where((v := sq - s * s / count) > ROUNDING * sq, v.rsqrt(), 0.0) for s, sq in ((x, xx), (y, yy))
        )
        found = (xy - x.outer(y) / count) * one.outer(two)  # a unit that is always the same matches none
        same = torch.eye(len(x), dtype=found.dtype, device=found.device)
        kept = tuple(label for label in labels if label)
        return same.view(*shape, -1), found.T.reshape(*shape, -1), (*kept, "")


def _units(view: Tensor, labels: Sequence[str]) -> Tensor:
    """With a row for each unit; infinities, as those of masks, count as zero."""
    view = view.masked_fill(view.isinf(), 0.0)
    dims = [k for k, label in enumerate(labels) if label]
    return view.movedim(dims, [*range(len(dims))]).reshape(prod(view.shape[k] for k in dims), -1)
