"""The transformers callback with the real library, on a tiny network with random weights."""

import pytest
import torch

import thalweg as tw

transformers = pytest.importorskip("transformers")
from thalweg.integrations.transformers import WalkCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
FGE = tw.FGE(cycle=tw.Iterations(4), lr_max=0.05, lr_min=0.005)


def model():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=3
    )
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    return transformers.BertForSequenceClassification(config)


def data():
    g = torch.Generator().manual_seed(1)
    return [
        {"input_ids": torch.randint(20, (6,), generator=g), "labels": int(torch.randint(3, (), generator=g))} for _ in range(24)
    ]


class Rates(transformers.TrainerCallback):
    def __init__(self):
        self.seen = []

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        self.seen.append(optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize(("epochs", "expected"), [(2.5, [3]), (4.4, [3, 9])])
def test_cycles_count_epochs_also_when_those_are_not_whole(epochs, expected, tmp_path):
    callback = WalkCallback(tw.FGE(cycle=2, lr_max=0.05, lr_min=0.005))
    arguments = transformers.TrainingArguments(
        output_dir=tmp_path, num_train_epochs=epochs, per_device_train_batch_size=8, report_to=[], use_cpu=True,
        save_strategy="no", logging_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    transformers.Trainer(model(), arguments, train_dataset=data(), callbacks=[callback]).train()
    assert [member.made["iteration"] for member in callback.members] == expected


def test_a_resumed_training_has_all_networks(tmp_path):
    def train(callback, resume=None, **settings):
        arguments = transformers.TrainingArguments(
            output_dir=tmp_path, num_train_epochs=4, per_device_train_batch_size=8, report_to=[], use_cpu=True,
            save_strategy="steps", save_steps=7, logging_strategy="no", disable_tqdm=True, **settings,
        )  # fmt: skip
        trainer = transformers.Trainer(model(), arguments, train_dataset=data(), callbacks=[callback])
        trainer.train(resume_from_checkpoint=resume)
        return [member.made["iteration"] for member in callback.members]

    assert train(WalkCallback(FGE)) == [2, 6, 10]
    assert train(WalkCallback(FGE), resume=str(tmp_path / "checkpoint-7")) == [2, 6, 10]


def test_the_rates_and_networks_of_the_method(tmp_path):
    callback, rates, network = WalkCallback(FGE), Rates(), model()
    arguments = transformers.TrainingArguments(
        output_dir=tmp_path,
        num_train_epochs=4,
        per_device_train_batch_size=8,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        max_grad_norm=0.0,
    )
    optimizer = torch.optim.SGD(network.parameters(), lr=9.0, momentum=0.9)
    trainer = transformers.Trainer(
        network, arguments, train_dataset=data(), optimizers=(optimizer, None), callbacks=[callback, rates]
    )
    trainer.train()
    plan = FGE.plan(3, 4)
    assert rates.seen == [plan.rate(i) for i in range(1, 13)]
    assert [member.made["iteration"] for member in callback.members] == [2, 6, 10]
    batches = [{key: torch.stack([torch.as_tensor(row[key]) for row in data()]) for key in ("input_ids", "labels")}]
    score = tw.Ensemble(model(), callback.members).score(tw.classification(), batches)
    assert 0 <= score["error"] <= 1
    assert callback.members[0].distance(callback.members[2]) > 0
