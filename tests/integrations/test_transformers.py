"""The transformers callback with the real library, on a tiny network with random weights."""

import doctest
from traceback import StackSummary

import pytest
import torch
from looks import Looks

import thalweg as tw
from thalweg.runtime.cuda_graphs import _waiting

transformers = pytest.importorskip("transformers")
from thalweg.integrations.transformers import WalkCallback, own_loss  # noqa: E402

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
        {"input_ids": torch.randint(20, (6,), generator=g), "labels": int(torch.randint(3, (), generator=g))}
        for _ in range(24)
    ]


class Rates(transformers.TrainerCallback):
    def __init__(self):
        self.seen = []

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        self.seen.append(optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize(("epochs", "expected"), [(2.5, [3]), (4.4, [3, 9])])
def test_walk_callback_counts_fractional_epochs(epochs, expected, tmp_path):
    callback = WalkCallback(tw.FGE(cycle=2, lr_max=0.05, lr_min=0.005))
    arguments = transformers.TrainingArguments(
        output_dir=tmp_path, num_train_epochs=epochs, per_device_train_batch_size=8, report_to=[], use_cpu=True,
        save_strategy="no", logging_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    transformers.Trainer(model(), arguments, train_dataset=data(), callbacks=[callback]).train()
    assert [member.made["iteration"] for member in callback.members] == expected


def test_walk_callback_resumes_with_all_networks(tmp_path):
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


def test_walk_callback_has_the_rates_and_networks_of_the_method(tmp_path):
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


TINY = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
MODELS = {
    "classes": lambda: transformers.BertForSequenceClassification(transformers.BertConfig(**TINY, num_labels=3)),
    "number": lambda: transformers.BertForSequenceClassification(transformers.BertConfig(**TINY, num_labels=1)),
    "tags": lambda: transformers.BertForTokenClassification(transformers.BertConfig(**TINY, num_labels=20)),
    "masked": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**TINY)),
    "causal": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY)),
    "head": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2)),
    "decoder": lambda: transformers.BartForCausalLM(  # which does not shift its labels
        transformers.BartConfig(
            vocab_size=20, d_model=8, decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=16, dropout=0.0
        )
    ),
    "permuted": lambda: transformers.XLNetLMHeadModel(
        transformers.XLNetConfig(vocab_size=20, d_model=8, n_layer=1, n_head=2, d_inner=16)
    ),
    "seq2seq": lambda: transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=20, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0
        )
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_transformers_task_loss_is_the_mean_over_counted_labels(name):
    """The loss, the number it is the mean of, and the predictions agree, also where labels do not count."""
    torch.manual_seed(0)
    network = MODELS[name]().eval()
    tokens = torch.randint(20, (4, 6))
    labels = {"classes": torch.tensor([0, 1, -100, 0]), "number": torch.randn(4)}.get(name, tokens.clone())
    if labels.ndim > 1:
        labels[0, 2:] = -100
    batch, task = {"input_ids": tokens, "labels": labels}, own_loss(network)
    if not labels.is_floating_point():  # which says nothing about what counts
        task.predict(network, {**batch, "labels": torch.full_like(labels, -100)})
    outputs, targets = task.predict(network, batch)
    each = (
        (outputs.logits - targets).square()
        if name == "number"
        else torch.nn.functional.cross_entropy(outputs.logits, targets, reduction="none")[targets != -100]
    )
    assert int(task.size(batch)) == len(each)
    assert float(task.loss(outputs, targets)) == pytest.approx(float(each.mean()), rel=1e-5)


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("name", sorted(MODELS.keys() - {"decoder"}))  # which draws on the CPU whether to drop a layer
def test_transformers_step_reads_nothing_but_masks(name, cached, monkeypatch):
    """What transformers looks at by itself, it does not look at while a step is captured."""
    torch.manual_seed(0)
    network = MODELS[name]()
    network.config.use_cache = cached
    tokens = torch.randint(1, 20, (4, 6))
    labels = {"classes": torch.tensor([0, 1, 2, 0]), "number": torch.randn(4)}.get(name, tokens.clone())
    if labels.ndim > 1:
        labels[0, 2:] = -100
    mask = (torch.arange(6) < torch.tensor([[2], [6], [5], [6]])).long()
    task = own_loss(network)
    task.predict(network, {"input_ids": tokens, "labels": labels})  # the first may, at which labels count
    for batch in (
        {"input_ids": tokens, "labels": labels},
        {"input_ids": tokens, "labels": labels, "attention_mask": mask},
    ):
        with monkeypatch.context() as patch:
            patch.setattr(transformers.utils.import_utils, "is_cuda_stream_capturing", lambda: True)
            with Looks() as looks:
                loss = task.loss(*task.predict(network.train(), batch))
                loss.backward()
        assert not looks.seen


def test_transformers_step_can_be_captured():
    """It asks before whether a step is captured; anything else is named."""
    masks = transformers.masking_utils.__file__
    assert _waiting(StackSummary.from_list([(__file__, 1, "f", "x"), (masks, 2, "g", "mask.all()")])) is None
    found = _waiting(
        StackSummary.from_list([(masks, 2, "g", "m()"), ("mine.py", 3, "f", "x.item()"), (torch.__file__, 1, "", "")])
    )
    assert (found.filename, found.lineno, found.line) == ("mine.py", 3, "x.item()")


def test_transformers_fine_tuning_with_padding_is_a_plain_loop():
    """AdamW without decay of what is no matrix, two batches per update weighted by their tokens, warm-up, clipping."""
    torch.manual_seed(0)
    network = MODELS["causal"]().double()
    tokens = torch.randint(1, 20, (4, 3, 6))
    masks = (torch.arange(6) < torch.randint(3, 7, (4, 3, 1))).long()
    labels = tokens.where(masks.bool(), -100)
    batches = [
        {"input_ids": x, "attention_mask": m, "labels": y} for x, m, y in zip(tokens, masks, labels, strict=True)
    ]

    def grouped(named):
        matrices, rest = ([p for _, p in named if (p.ndim > 1) == wide] for wide in (True, False))
        return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}])

    schedule = tw.WarmupCosine(0.01, warmup=tw.Iterations(2))
    settings = {"epochs": 3, "schedule": schedule, "optimizer": grouped, "accumulate": 2, "clip": 0.5}
    ours = tw.fit(network, own_loss(network), batches, **settings)
    optimizer, rate, i = grouped(list(network.named_parameters())), schedule.plan(2, 3).rate, 0
    for _ in range(3):
        for group in (batches[:2], batches[2:]):
            i += 1
            number = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in group)
            for batch in group:
                own = int((batch["labels"][:, 1:] != -100).sum())
                (network.train()(**batch).loss * own / number).backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 0.5)
            for parameters in optimizer.param_groups:
                parameters["lr"] = rate(i)
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(ours.vector, tw.Weights.of(network).vector, rtol=0, atol=1e-6)  # its loss is in float32


def test_transformers_task_leaves_out_prompt_tokens():
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    network = peft.get_peft_model(MODELS["head"](), config).eval()
    tokens = torch.randint(20, (4, 6))
    batch, task = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}, own_loss(network)
    outputs, targets = task.predict(network, batch)
    assert int(task.size(batch)) == len(outputs.logits) == 24  # the first token is predicted by the last prompt
    mean = torch.nn.functional.cross_entropy(outputs.logits, targets)
    assert float(task.loss(outputs, targets)) == pytest.approx(float(mean), rel=1e-5)


@pytest.mark.parametrize("name", ["causal", "masked", "classes"])
def test_transformers_accumulated_part_without_counted_labels_adds_nothing(name):
    """To the mean over an update's tokens, or to a scan; alone it is refused."""
    torch.manual_seed(0)
    network = MODELS[name]().double().eval()
    some = torch.randint(20, (4, 6))
    labels = torch.tensor([0, 1, 2, 0]) if name == "classes" else some
    full, empty = ({"input_ids": some, "labels": own} for own in (labels, torch.full_like(labels, -100)))
    settings = {"epochs": 1, "lr": 0.1, "momentum": 0.0, "seed": 1}
    network.config.hidden_dropout_prob = 0.0
    for part in network.modules():
        part.p = 0.0 if isinstance(part, torch.nn.Dropout) else getattr(part, "p", None)
    whole = tw.fit(network, own_loss(network), [full], **settings)
    for parts in ([full, empty], [empty, full]):
        ours = tw.fit(network, own_loss(network), parts, accumulate=2, **settings)
        torch.testing.assert_close(ours.vector, whole.vector, rtol=1e-12, atol=1e-14)
    scans = [tw.scan(network, [whole], own_loss(network), {"x": data}) for data in ([full], [full, empty])]
    assert scans[0].values["x"]["loss"] == pytest.approx(scans[1].values["x"]["loss"], rel=1e-12)
    with pytest.raises(tw.ThalwegError, match="nothing in this batch counts"):
        tw.fit(network, own_loss(network), [empty, empty], accumulate=2, **settings)


@pytest.mark.parametrize("batch", [{"input_ids": torch.ones(2, 3).long()}, (torch.ones(2, 3).long(),) * 2])
def test_transformers_task_names_batches_without_labels(batch):
    network = MODELS["causal"]()
    with pytest.raises(tw.ThalwegError, match="needs batches that are dicts with a tensor of 'labels'; got"):
        tw.fit(network, own_loss(network), [batch], epochs=1, lr=0.1)


def test_transformers_docstring_examples():
    from thalweg.integrations import transformers as ours

    found = doctest.testmod(ours)
    assert found.attempted > 0
    assert found.failed == 0
