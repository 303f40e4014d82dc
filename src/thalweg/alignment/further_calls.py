"""The further ways to call a network that a renumbering must respect: other kinds of batches, and training mode."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from ..errors import first_line, warn
from ..runtime.rng import seeded
from .calls import Called, recorded, scripted_parts
from .examples import first, kind_of
from .modes import training
from .network_copy import NetworkCopy
from .noted import draws, only_skips, operations, parameters_in, path_of
from .outputs import CLOSE, apart

KINDS = 8  # of batches that are followed although they compute nothing new but for the sizes of tensors
RUNS = 4  # in training, to see whether it only skips parts at random
CHANCES = 16  # runs where it draws random numbers, to see whether its path depends on them
LOOKED = 64  # kinds of batches that are looked at
RANDOM_PATH = "its path depends on random numbers there"


class FurtherCalls:
    """Finds the calls beside the first one in eval mode, and lets proofs compare them."""

    def __init__(self, network: NetworkCopy):
        self.network, self.net, self.task = network, network.net, network.task

    def trains_otherwise(self, batch: Any, every: bool = True) -> bool:
        """Whether the network computes something else in training, with auxiliary heads, say."""
        if scripted_parts(self.net):
            return True
        with suppress(Exception):
            usual = self._noted(batch)
            with training(self.net, every):
                return self._noted(batch) != usual
        return True

    def include_training(self, batch: Any) -> list[Called]:
        """Calls with this batch in training mode: with all parts of the network, and if that draws random numbers,
        without those that have no parameters. Proofs compare the first that draws none.
        """
        found: list[Called] = []
        why = ""
        for every in (True, False):
            if not every and not self.trains_otherwise(batch, every):
                break
            try:
                found.append(self._in_training(batch, every))
                if self._compares(found[-1]):
                    break
            except Exception as error:
                why = f"{type(error).__name__}: {first_line(error)[:200]}"
        if not found and why and len(parameters_in(self._operations(batch)) & self.numbers) < len(self.numbers):
            warn_of_training(f"it fails there with {why}")
        return found

    @property
    def numbers(self) -> set[int]:
        """Those of all parameters."""
        return {*range(len([*self.net.parameters()]))}

    def skips_at_random(self, batch: Any) -> bool:
        """Whether training does no more than to skip parts of what eval mode computes, as far as some runs show."""
        with suppress(Exception):
            usual, every = self._noted(batch), len(self.numbers)
            with training(self.net):
                return all(only_skips(self._noted(batch, k), usual, every) for k in range(RUNS))
        return False

    def takes_random_paths(self, batch: Any) -> bool:
        """Whether training computes from parameters, by chance, what neither eval mode nor the first run does."""
        with suppress(Exception):
            known, every = self._noted(batch), len(self.numbers)
            with training(self.net):
                runs = range(1, CHANCES) if draws(self.net, self.task, batch) else ()
                known += self._noted(batch) if runs else []
                return not all(only_skips(self._noted(batch, k), known, every) for k in runs)
        return False

    def _in_training(self, batch: Any, every: bool) -> Called:
        made = recorded(self.net, self.task, batch).made
        with training(self.net, every):
            called = recorded(self.net, self.task, batch)
        called.every = every
        if called.made != made:  # then all of it has an order, whether this task uses it or not
            called.used = None
        return called

    def _compares(self, called: Called) -> bool:
        """Whether proofs can compare a call from now on, which does not draw random numbers."""
        self.network.trained.append(called)
        same = False
        try:
            same = apart(self.network.outputs(), self.network.outputs(seed=1)) <= CLOSE
        finally:
            self.network.trained = self.network.trained if same else self.network.trained[:-1]
        return same

    def follow_kinds(
        self, batches: Iterable[Any], unused: Callable[[], set[int]], follow: Callable[[Any], None]
    ) -> None:
        """Call `follow` with two examples of every kind of batch that is computed in another way than those before, and
        let proofs compare it: of all that are in a list, and where parameters were not used so far, of all others as
        well, until they are.

        Args:
            batches: The batches.
            unused: Gives the numbers of the parameters that no call has used so far.
            follow: What to do with each.
        """
        idle, listed = unused(), isinstance(batches, Sequence)
        if not (idle or listed):
            return
        kinds, calls = {self.network.kind}, [self._operations(self.network.few)]
        held = len([*self.net.parameters(), *self.net.buffers()])
        paths = [path_of(calls[0], held)]
        with seeded(0, batches):
            for other in batches:
                kind = kind_of(first(other, 2))
                if kind in kinds or len(kinds) >= LOOKED:
                    continue
                kinds.add(kind)
                enough = len(calls) >= KINDS and not idle
                if enough and path_of(self._operations(self.network.converted(first(other, 2))), held) in paths:
                    continue
                few = self.network.examples_of(other)
                noted = self._operations(few)
                path = path_of(noted, held)
                new = (idle & parameters_in(noted) if noted else idle) or path not in paths
                if (noted and noted in calls) or not (new or len(calls) < KINDS):
                    continue
                calls.append(noted)
                paths.append(path)
                self.network.further.append(few)
                follow(few)
                idle = unused()
                if not (idle or listed):
                    return
        if idle and batches:
            names = [name for k, (name, _) in enumerate(self.net.named_parameters()) if k in idle]
            warn(
                "parameters that took no part in any of the batches, or not as a whole, keep their order "
                f"('{names[0]}'{f' and {len(names) - 1} more' if names[1:] else ''}): where another call uses them, an "
                "aligned network may compute something else; give batches that use them, or groups by hand"
            )

    def _noted(self, batch: Any, seed: int = 0) -> list[Any]:
        return operations(self.net, self.task, batch, seed)

    def _operations(self, batch: Any) -> list[Any]:
        """None where they cannot be noted."""
        with suppress(Exception):
            return self._noted(batch)
        return []

    def include_all(self, batches: Iterable[Any]) -> None:
        """Let proofs compare all kinds of batches, in training mode too, without tracing them."""
        hidden = {id(tensor) for part in scripted_parts(self.net).values() for tensor in part.parameters()}
        used = {k for k, parameter in enumerate(self.net.parameters()) if id(parameter) in hidden}

        def include(few: Any) -> None:
            used.update(parameters_in(self._operations(few)))
            calls = self.include_training(few) if self.trains_otherwise(few) else []
            if calls and not {*calls} & {*self.network.trained} and not self.skips_at_random(few):
                warn_of_training("it draws random numbers there, so that nothing can be compared")
            elif self.takes_random_paths(few):
                warn_of_training(RANDOM_PATH)

        include(self.network.few)
        self.follow_kinds(batches, lambda: self.numbers - used, include)
        held = (*self.net.named_parameters(), *self.net.named_buffers())  # in the order in which they are noted
        self.network.idle = {name for k, (name, _) in enumerate(held) if k not in used}


def warn_of_training(why: str) -> None:
    warn(
        f"this network computes something else in training mode, which could not be checked, since {why}: what it "
        "computes only there may change when its units are renumbered"
    )
