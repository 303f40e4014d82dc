"""Alignment of models of the libraries people use: what is found, and a planted order that is found again."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from align_zoo import random_permutation
from torch import nn
from without_torchvision import import_timm

import thalweg as tw
from thalweg.integrations.transformers import own_loss

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries themselves
timm = import_timm()
WORDS = 30


def timm_model(name: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, num_classes=10, **options)


def images(size: int = 32) -> Any:
    g = torch.Generator().manual_seed(0)
    return torch.randn(2, 3, size, size, generator=g), torch.randint(10, (2,), generator=g)


def sentences() -> Any:
    g = torch.Generator().manual_seed(0)
    return {"input_ids": torch.randint(2, WORDS, (2, 9), generator=g), "labels": torch.tensor([0, 1])}


def texts() -> Any:
    tokens = sentences()["input_ids"]
    return {"input_ids": tokens, "labels": tokens}


def bert() -> nn.Module:
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 3}
    config = transformers.BertConfig(vocab_size=WORDS, max_position_embeddings=12, num_labels=2, **sizes)
    return transformers.BertForSequenceClassification(config)


def gpt2() -> nn.Module:
    sizes = {"n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 12, "bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=WORDS, **sizes))


def llama() -> nn.Module:
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 6}
    config = transformers.LlamaConfig(vocab_size=WORDS, num_key_value_heads=2, max_position_embeddings=12, **sizes)
    return transformers.LlamaForCausalLM(config)


def t5() -> nn.Module:
    sizes = {"d_model": 24, "d_kv": 4, "d_ff": 40, "num_layers": 2, "num_heads": 3, "decoder_start_token_id": 0}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=WORDS, **sizes))


def bart() -> nn.Module:
    sizes: dict[str, Any] = {"d_model": 24, "max_position_embeddings": 16, "decoder_start_token_id": 1}
    for part in ("encoder", "decoder"):
        sizes |= {f"{part}_ffn_dim": 40, f"{part}_layers": 1, f"{part}_attention_heads": 6}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1, "forced_eos_token_id": 1}
    return transformers.BartForConditionalGeneration(transformers.BartConfig(vocab_size=WORDS, **sizes, **tokens))


def bloom() -> nn.Module:
    config = transformers.BloomConfig(vocab_size=WORDS, hidden_size=24, n_layer=2, n_head=6)
    return transformers.BloomForCausalLM(config)


def mamba() -> nn.Module:
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "state_size": 5}
    return transformers.MambaForCausalLM(transformers.MambaConfig(vocab_size=WORDS, **sizes))


def mixer() -> nn.Module:
    sizes = {"img_size": 32, "patch_size": 8, "num_blocks": 2, "embed_dim": 24}
    return timm.models.mlp_mixer.MlpMixer(num_classes=10, **sizes)


VIT = {"img_size": 32, "patch_size": 8, "depth": 2}
SWIN = {"img_size": 64, "window_size": 4, "depths": (1, 1), "embed_dim": 24, "num_heads": (2, 4)}
# the model, its batch, and how many groups are found
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any], int]] = {
    "timm ResNet": (timm_model("resnet10t"), images, 10),
    "timm ConvNeXt": (timm_model("convnext_atto"), images, 16),
    "timm ViT": (timm_model("vit_tiny_patch16_224", **VIT), images, 9),
    "timm Swin": (timm_model("swin_tiny_patch4_window7_224", **SWIN), lambda: images(64), 10),
    "timm EfficientNet": (timm_model("efficientnet_b0"), images, 40),
    "timm MobileNet": (timm_model("mobilenetv3_small_050"), images, 26),
    "timm RegNet": (timm_model("regnetx_002"), images, 44),
    "timm MLP-Mixer": (mixer, images, 5),
    "transformers BERT": (bert, sentences, 10),
    "transformers GPT-2": (gpt2, texts, 9),
    "transformers Llama": (llama, texts, 9),
    "transformers T5": (t5, texts, 20),
    "transformers BART": (bart, texts, 12),
    "transformers Bloom": (bloom, texts, 7),
    "transformers Mamba": (mamba, texts, 7),
}


@pytest.mark.parametrize("name", MODELS)
def test_align_recovers_a_planted_order_by_weights(name):
    make, batch, groups = MODELS[name]
    torch.manual_seed(0)
    module = make()
    task = own_loss(module) if batch is texts else tw.classification()
    a, g = tw.Weights.of(module), torch.Generator().manual_seed(0)
    noise = torch.cat(
        [
            0.01 * (t.std() if t.numel() > 1 else 0) * torch.randn(t.numel(), generator=g)
            for t in a.layout.split(a.vector).values()
        ]
    )
    near = tw.Weights(a.layout, a.vector + noise, a.buffers)
    found = tw.symmetries(module, task, batch())
    assert not found.dropped, str(found)
    assert len(found.groups) == groups, str(found)
    assert found.share > 0.99
    b = random_permutation(found).apply(near)
    aligned = tw.align(module, a, b, task, [batch()])
    assert aligned.before > 10 * aligned.after
    assert torch.equal(aligned.vector, near.vector)
