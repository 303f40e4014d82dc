"""Weights of which every rank holds a shard: which part of each tensor that is, and files in shards."""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from glob import escape
from math import prod
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from ..errors import ThalwegError, first_line
from ..store import files
from ..weightspace.layout import Layout
from .compute import Processes, SingleProcess, present
from .distributed import collective

Empty = Callable[[str, tuple[int, ...], torch.dtype], Tensor]


@dataclass(frozen=True)
class Division:
    """How one tensor is divided: its whole shape, the dimension that is cut, and the shape of this rank's shard."""

    shape: tuple[int, ...]
    cut: Shard
    local: tuple[int, ...]


@dataclass(frozen=True)
class ShardedLayout(Layout):
    """The layout of a network in shards. Names and shapes are those of the whole network; a vector holds this rank's
    shards one after another, and is a plain tensor, since all arithmetic of curves is element by element.

    Attributes:
        mesh: The ranks, along one dimension.
        divisions: Of every parameter, the frozen ones included.
    """

    mesh: DeviceMesh = field(kw_only=True, compare=False)
    divisions: Mapping[str, Division] = field(kw_only=True, compare=False)

    @property
    def shards(self) -> tuple[str, ...]:  # type: ignore[override]
        return (f"among {self.mesh.size()} ranks",)

    @property
    def size(self) -> int:
        return sum(prod(self.divisions[name].local) for name in self.names)

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        pieces = vector.split([prod(self.divisions[name].local) for name in self.names])
        return {name: self.distributed(name, piece) for name, piece in zip(self.names, pieces, strict=True)}

    def join(self, tensors: Sequence[Tensor]) -> Tensor:
        placed = [self.placed(*pair) for pair in zip(self.names, tensors, strict=True)]
        return torch.cat([tensor.to_local().reshape(-1) for tensor in placed])

    def placed(self, name: str, tensor: Tensor) -> DTensor:
        if isinstance(tensor, DTensor):
            return tensor
        return distribute_tensor(tensor, self.mesh, [self.divisions[name].cut], src_data_rank=None)

    def total(self, values: Tensor) -> Tensor:
        summed = values.to(self.mesh.device_type, copy=True)
        collective(dist.all_reduce, summed, group=self.mesh.get_group())
        return summed

    def distributed(self, name: str, shard: Tensor) -> Tensor:
        """The distributed tensor of which this is the shard; in the same memory."""
        own, mesh = self.divisions[name], self.mesh if shard.device.type == self.mesh.device_type else self.mesh_of_cpus
        whole = torch.empty(own.shape, device="meta")
        return DTensor.from_local(
            shard.view(own.local), mesh, [own.cut], run_check=False, shape=whole.shape, stride=whole.stride()
        )

    @cached_property
    def mesh_of_cpus(self) -> DeviceMesh:
        """For vectors that are not on the GPU, which would be copied there otherwise."""
        return DeviceMesh("cpu", self.mesh.mesh)

    def to_dict(self) -> dict[str, Any]:
        return Layout(**{one.name: getattr(self, one.name) for one in fields(Layout)}).to_dict()

    def save(self, path: Path, kind: str, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """By all ranks: a folder with a file of each, and next to it a file with everything else, which names it."""
        ranks = present.get().processes
        divided = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, DTensor)}
        rest = {name: tensor for name, tensor in tensors.items() if name not in divided}
        folder = ranks.once(lambda: _new_folder(path))
        try:
            save(divided, storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))
        except CheckpointException as error:
            raise ThalwegError(
                f"{path} could not be written ({first_line(next(iter(error.failures.values()))[0])}), and what was "
                "there before is unchanged: make room or choose another folder, then try again"
            ) from error
        digests = _digests(folder, ranks)
        ranks.once(lambda: _publish(path, folder, digests, kind, rest, about))

    def load(self, path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """This rank's shards, from what any number of ranks have written, or from a whole file."""
        with files.reading(path), safe_open(files.existing(path), "pt") as file:
            about = json.loads((file.metadata() or {}).get("about", "{}"))
            if "shards" not in about:
                files.expect(path, kind, file.metadata() or {}, files.kind_of(path))
                return {key: self._sliced(key, file) for key in file.keys()}, about  # noqa: SIM118
        tensors, about = files.load_tensors(path, kind, whole=False)
        return tensors | read_shards(path, about, self.empty, present.get().processes), about

    def _name(self, key: str) -> str | None:
        """The parameter that a tensor in a file belongs to; those of a curve have a number before it."""
        return next((name for name in (key, key.partition("/")[2]) if name in self.divisions), None)

    def _sliced(self, key: str, file: Any) -> Tensor:
        name = self._name(key)
        if name is None:
            return file.get_tensor(key)
        own = self._checked(key, file.get_slice(key).get_shape())
        length, dim = own.shape[own.cut.dim], own.cut.dim
        start = min(-(-length // self.mesh.size()) * self.mesh.get_local_rank(), length)
        shard = file.get_slice(key)[(slice(None),) * dim + (slice(start, start + own.local[dim]),)]
        return self.distributed(name, shard.to(self.mesh.device_type))

    def empty(self, key: str, shape: tuple[int, ...], dtype: torch.dtype, device: str | None = None) -> Tensor:
        """To read a tensor of a file into; on the device of the network by default."""
        shard = torch.empty(self._checked(key, shape).local, dtype=dtype, device=device or self.mesh.device_type)
        return self.distributed(str(self._name(key)), shard)

    def _checked(self, key: str, shape: Sequence[int]) -> Division:
        own = self.divisions.get(self._name(key) or "")
        if own is None or own.shape != tuple(shape):
            there = "not in the network" if own is None else f"{own.shape} in the network"
            raise ThalwegError(f"the network is another one: '{key}' is {tuple(shape)} in the file and {there}")
        return own


def read_shards(path: Path, about: dict[str, Any], empty: Empty, ranks: Processes) -> dict[str, Tensor]:
    """The tensors in the folder that a file names.

    Args:
        path: The file.
        about: What it says: the name of the folder and the hashes of its files, which are removed.
        empty: Makes a tensor to read into, whole or distributed.
        ranks: Who reads them; each looks for damage in a part of the files.
    """
    with files.reading(path):
        said = about.pop("shards")
        if not _is_named_for(path, said["folder"]):
            raise ThalwegError(f"{path} names {said['folder']!r:.80}, which thalweg did not write: do not use it")
        folder = files.no_link(path.with_name(said["folder"]))
    if not folder.is_dir():
        raise ThalwegError(f"{path} has its weights in {folder.name}, which is not next to it: keep both in one folder")
    with files.reading(folder):
        if _digests(folder, ranks) != said["files"]:
            raise ThalwegError(f"{folder} is damaged: its files are not those that {path.name} names; restore a copy")
        reader = HuggingFaceStorageReader(str(folder))
        known: Any = reader.read_metadata().state_dict_metadata
        found = {key: empty(key, tuple(one.size), one.properties.dtype) for key, one in known.items()}
        with catch_warnings(action="ignore"):  # about no_dist, though it was asked for
            load(found, storage_reader=reader, no_dist=True)
    return found


def read_whole(path: Path, about: dict[str, Any]) -> dict[str, Tensor]:
    """All shards, as whole tensors on the CPU."""
    return read_shards(
        path, about, lambda _, shape, dtype: torch.empty(shape, dtype=dtype, device="cpu"), SingleProcess()
    )


def _digests(folder: Path, ranks: Processes) -> dict[str, str]:
    """Of all files; each rank reads some."""
    own = {}
    for path in sorted(folder.iterdir())[ranks.rank :: ranks.size]:
        with open(files.no_link(path), "rb") as file:
            os.fsync(file.fileno())
            own[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return dict(sorted(pair for each in ranks.gather(own) for pair in each.items()))


def _new_folder(path: Path) -> Path:
    with files.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=files.PART))


def _publish(
    path: Path,
    folder: Path,
    digests: Mapping[str, str],
    kind: str,
    rest: Mapping[str, Tensor],
    about: Mapping[str, Any],
) -> None:
    """Name the folder by its content, then replace the file, then delete folders that it named before."""
    name = f"{path.stem}-shards-{files.text_digest(kind, json.dumps(digests))[:16]}"
    with files.writing(path):
        os.replace(folder, path.with_name(name)) if not path.with_name(name).exists() else files.discard(folder)
    files.save_tensors(path, kind, rest, {**about, "shards": {"folder": name, "files": dict(digests)}})
    discard_shards(path, name)


def discard_shards(path: Path, but: str = "") -> None:
    """Delete the folders of shards that belong to a file; not those with another name, or with files of others."""
    for old in path.parent.glob(f"{escape(path.stem)}-shards-*"):
        ours = _is_named_for(path, old.name) and old.is_dir() and not old.is_symlink()
        if ours and old.name != but and all(file.match("shard-*.safetensors") for file in old.iterdir()):
            files.discard(old)


def _is_named_for(path: Path, folder: str) -> bool:
    return re.fullmatch(rf"{re.escape(path.stem)}-shards-[0-9a-f]{{16}}", folder) is not None
