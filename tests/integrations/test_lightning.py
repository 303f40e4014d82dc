"""The Lightning callback with the real library: the same networks as `walk`."""

import logging
import warnings

import pytest
import torch
from torch import nn

import thalweg as tw

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lightning = pytest.importorskip("lightning")
from thalweg.integrations.lightning import WalkCallback

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
pytestmark = pytest.mark.filterwarnings("ignore")
FGE = tw.FGE(cycle=tw.Iterations(4), lr_max=0.1, lr_min=0.01)


class Module(lightning.LightningModule):
    def __init__(self, scheduler=False):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        self.with_scheduler = scheduler

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=9.0, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)] if self.with_scheduler else []


def loader():
    g = torch.Generator().manual_seed(1)
    data = torch.utils.data.TensorDataset(torch.randn(24, 4, generator=g), torch.randint(3, (24,), generator=g))
    return torch.utils.data.DataLoader(data, batch_size=8)


def trainer(callback, tmp_path, **settings):
    return lightning.Trainer(
        callbacks=[callback],
        default_root_dir=tmp_path,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"enable_checkpointing": False, **settings},
    )


def expected(epochs):
    task = tw.Task(tw.classification().loss, lambda net, batch: (net.net(batch[0]), batch[1]))
    return tw.walk(Module(), task, loader(), FGE, epochs=epochs).members


def test_walk_callback_collects_the_networks_of_walk(tmp_path):
    callback = WalkCallback(FGE)
    module = Module()
    trainer(callback, tmp_path, max_epochs=4).fit(module, loader())
    ours = expected(4)
    assert len(callback.members) == len(ours) == 3
    for one, two in zip(callback.members, ours, strict=True):
        assert torch.allclose(one.vector, two.vector, rtol=1e-4, atol=1e-6)
    tw.Ensemble(module, callback.members)


def test_walk_callback_resumes_in_the_middle_of_a_cycle(tmp_path):
    first = trainer(WalkCallback(FGE), tmp_path, max_epochs=4)
    first.fit_loop.max_epochs = 4
    stop = WalkCallback(FGE)
    half = trainer(stop, tmp_path, max_epochs=4, limit_train_batches=3)
    module = Module()

    class Halt(lightning.pytorch.callbacks.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            if trainer.current_epoch == 0:
                trainer.save_checkpoint(tmp_path / "half.ckpt")
                trainer.should_stop = True

    half.callbacks.append(Halt())
    half.fit(module, loader())
    resumed = WalkCallback(FGE)
    trainer(resumed, tmp_path, max_epochs=4).fit(Module(), loader(), ckpt_path=tmp_path / "half.ckpt")
    assert [member.made["iteration"] for member in resumed.members] == [2, 6, 10]
    for one, two in zip(resumed.members, expected(4), strict=True):
        assert torch.allclose(one.vector, two.vector, rtol=1e-4, atol=1e-6)


def test_walk_callback_counts_accumulated_gradients_as_one_step(tmp_path):
    callback = WalkCallback(tw.FGE(cycle=tw.Iterations(2), lr_max=0.1, lr_min=0.01))
    trainer(callback, tmp_path, max_epochs=4, accumulate_grad_batches=3).fit(Module(), loader())
    assert [member.made["iteration"] for member in callback.members] == [1, 3]


def test_walk_callback_refuses_a_scheduler_of_the_module(tmp_path):
    with pytest.raises(tw.ThalwegError, match="no scheduler"):
        trainer(WalkCallback(FGE), tmp_path, max_epochs=2).fit(Module(scheduler=True), loader())


def test_scan_of_a_lightning_module_attached_to_a_trainer_or_not(tmp_path):
    """Straight from a Trainer, still attached to it or no longer, with a loss that logs."""
    module = Module()
    trainer(WalkCallback(FGE), tmp_path, max_epochs=2).fit(module, loader())
    task = tw.Task(
        lambda loss, _: loss, lambda net, batch: (net.training_step(batch, 0), None), size=lambda batch: len(batch[1])
    )
    attached = tw.scan(module, [tw.Weights.of(module)], task, {"train": loader()}).values["train"]["loss"]
    assert module.trainer is not None
    module.trainer = None
    assert tw.scan(module, [tw.Weights.of(module)], task, {"train": loader()}).values["train"]["loss"] == attached
