"""A checkpoint of plain training: weights and optimizer state."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from ..store import files, packing, records
from .weights import Weights

PART = "/"  # before the number of a parameter, in the name of optimizer state that not all of them have


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A point of plain training: weights and optimizer state.

    Args:
        weights: The weights.
        optimizer: The state by name, vectors in the order of the weights.
        kind: The class of the optimizer.
        epoch: The epoch after which it was kept.
        extra: What the optimizer keeps elsewhere, such as values of its groups that it changes.
    """

    weights: Weights
    optimizer: dict[str, Tensor] = field(repr=False)
    kind: str
    epoch: int
    extra: dict[str, Any] = field(default_factory=dict, repr=False)

    def save(self, path: str | Path, apart: bool = False) -> None:
        """Write one safetensors file.

        Args:
            path: The file to write.
            apart: Put the frozen parameters in a separate file next to it, as in `Weights.save`.
        """
        own, about = self.weights._parts(files.place(path), apart)
        tensors = {f"weights/{name}": tensor for name, tensor in own.items()}
        tensors |= {f"optimizer/{name}": tensor for name, tensor in self.optimizer.items()}
        arrays, extra = packing.packed(self.extra)
        tensors |= {f"extra/{name}": tensor for name, tensor in arrays.items()}
        metadata = {"kind": self.kind, "epoch": self.epoch} | ({"extra": extra} if extra else {})
        files.save_tensors(Path(path), "checkpoint", tensors, {**about, **metadata})

    @classmethod
    def load(cls, path: str | Path) -> "Checkpoint":
        """Read what `save` wrote.

        Args:
            path: The file.
        """
        tensors, about = files.load_tensors(files.place(path), "checkpoint")
        weights = Weights._of_parts(Path(path), files.below(tensors, "weights/"), about)
        with files.reading(Path(path)):
            extra = packing.unpacked(
                files.below(tensors, "extra/"), about.get("extra", {})
            )  # older files do not have it
            own = {key: about[key] for key in ("kind", "epoch")}
            return records.decoded(
                cls, {"weights": weights, "optimizer": files.below(tensors, "optimizer/"), "extra": extra, **own}
            )
