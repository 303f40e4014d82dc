"""The entry imagenet: FGE for five epochs from a pretrained ResNet-50."""

from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import ThalwegError
from ..evaluation.ensemble import Ensemble
from ..reporting.result import Claim
from ..training.walk import walk
from ..training.walk_methods import FGE
from ..weightspace.weights import Weights
from . import data as sets
from .curve_entries import Outcome
from .data import images_in
from .experiment import Experiment
from .models import resnet50
from .published import figure, quoted
from .recipes import Preset, Recipe

RECIPE = Recipe("imagenet", "resnet50", "ImageNet", "ResNet-50", 5, 1e-3, 1e-4, 0, 0.0, batch=256)


class ImageExperiment(Experiment):
    """A experiment on a folder of images, `train/<class>/...` and `val/<class>/...`, as its makers publish ImageNet."""

    size, workers = 224, 8

    def __init__(self, folder: Path, recipe: Recipe, scale: Preset, given: Path | None = None, **settings: Any):
        self.drawn = scale.name == "smoke" and given is None  # then a small network on random images
        make = {} if self.drawn else {"make": self._pretrained}
        super().__init__(folder, recipe, scale, given, **{**make, **settings})

    def _pretrained(self) -> nn.Module:
        assert self.train is not None  # report missing images first
        try:
            return resnet50(pretrained=True)
        except ValueError as error:
            raise ThalwegError(str(error)) from error

    def _read(self, part: str, **settings: Any) -> Any:
        given = sets.find_data(self.given)
        found = next((place / part for place in (given, given / "imagenet") if (place / part).is_dir()), None)
        if found is None:
            raise ThalwegError(
                "ImageNet is not for download: put its folders train/<class> and val/<class> into a folder, or into "
                f"'imagenet' in it, and name that with --data; there is no '{part}' in {given}"
            )
        return images_in(found, self.recipe.batch, size=self.size, workers=self.workers, **settings)

    @cached_property
    def train(self) -> Any:
        return super().train if self.drawn else self._read("train", train=True)

    @cached_property
    def test(self) -> Any:
        return super().test if self.drawn else self._read("val")


def fge_from_pretrained(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    method = FGE(cycle=2, lr_max=1e-3, lr_min=1e-5)
    start = Weights.of(experiment.form)
    own: dict[str, Any] = {"epochs": 5, "start": start, "run": experiment.folder / "fge-0", **experiment.settings}
    members = [start, *walk(experiment.form, experiment.task, experiment.train, method, **own).members]
    found = Ensemble(experiment.form, members).report(experiment.task, experiment.test, progress=experiment.progress)
    before, after = 100 * found.members[0]["error"], 100 * found.scores["error"]
    together, told = f"FGE, {len(members)} with the start", "FGE top-1 error after 5 epochs with 4 members (%)"
    rows = [
        {"networks": "pretrained", **quoted("error (%)", before, "pretrained top-1 error (%)")},
        {"networks": together, **quoted("error (%)", after, told)},
        {"networks": "the best reported of SSE", "error (%) (paper)": figure("SSE best reported top-1 error (%)")},
    ]
    return rows, [
        Claim("five epochs of FGE improve a pretrained network", after < before, f"{before:.2f} to {after:.2f} %")
    ]
