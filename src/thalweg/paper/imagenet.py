"""The entry imagenet: FGE for five epochs from a pretrained ResNet-50."""

from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

import thalweg as tw

from ..reporting.result import Claim
from .claims import limit, paper_number, quoted
from .curve_entries import Outcome
from .experiment import Experiment
from .recipes import Recipe

RECIPES = {
    ("imagenet", "resnet50"): Recipe("imagenet", "resnet50", "ImageNet", "ResNet-50", 5, 1e-3, 1e-4, 0, 0.0, batch=256)
}


class ImageExperiment(Experiment):
    """An experiment on a folder of images, `train/<class>/...` and `val/<class>/...`, as ImageNet is
    published.
    """

    size, workers = 224, 8

    def _network(self) -> nn.Module:
        if self.random_data:
            return super()._network()
        assert self.train is not None  # report missing images first
        return tw.models.resnet50(pretrained=True)

    def _read(self, part: str, **settings: Any) -> Any:
        given = tw.data.find_data(self.given)
        found = next((place / part for place in (given, given / "imagenet") if (place / part).is_dir()), None)
        if found is None:
            raise tw.ThalwegError(
                "ImageNet cannot be downloaded: put its folders train/<class> and val/<class> into a folder, or into "
                f"'imagenet' in it, and name that with --data; there is no '{part}' in {given}"
            )
        return tw.data.images_in(found, self.recipe.batch, size=self.size, workers=self.workers, **settings)

    @cached_property
    def train(self) -> Any:
        return super().train if self.random_data else self._read("train", train=True)

    @cached_property
    def test(self) -> Any:
        return super().test if self.random_data else self._read("val")


def fge_from_pretrained(experiment: Experiment, out: Path, seeds: int) -> Outcome:
    method, start = tw.FGE(cycle=2, lr_max=1e-3, lr_min=1e-5), tw.Weights.of(experiment.architecture)
    walk = tw.walk(
        experiment.architecture,
        experiment.task,
        experiment.train,
        method,
        epochs=5,
        start=start,
        run=experiment.folder / "fge-0",
        **experiment.settings,
    )
    members = [start, *walk.members]
    found = experiment.report(members)
    before, after = 100 * found.members[0]["error"], 100 * found.scores["error"]
    together, reported = f"FGE, {len(members)} with the start", "FGE top-1 error after 5 epochs with 4 members (%)"
    rows = [
        {"networks": "pretrained", **quoted("error (%)", before, "pretrained top-1 error (%)")},
        {"networks": together, **quoted("error (%)", after, reported)},
        {
            "networks": "the best reported of SSE",
            "error (%) (paper)": paper_number("SSE best reported top-1 error (%)"),
        },
    ]
    theirs = paper_number(reported)
    return rows, [
        Claim("five epochs of FGE improve a pretrained network", after < before, f"{before:.2f} to {after:.2f} %"),
        Claim(
            f"to at most {limit(theirs):.2f} %, the paper's {theirs:g} and half a point",
            after <= limit(theirs),
            f"{after:.2f} %",
        ),
    ]
