"""FLOPs of outside models agree with torch's own FLOP counter, forward and backward."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import (
    FlopCounterMode,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from graphplan.cost.flops import count_work
from graphplan.frontend import trace_module
from graphplan.nouns.opgraph import OpGraph

transformers = pytest.importorskip("transformers")
diffusers = pytest.importorskip("diffusers")

aten = torch.ops.aten
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL_TEXT = SMALL | {"intermediate_size": 128, "vocab_size": 100}
SMALL_IMAGE = SMALL | {"intermediate_size": 128, "image_size": 32, "patch_size": 8}
NO_DROPOUT = {"attention_probs_dropout_prob": 0.0}


def tokens(batch_size: int) -> dict[str, torch.Tensor]:
    """A batch of text."""
    return {"input_ids": torch.randint(0, 100, (batch_size, 32))}


def images(batch_size: int) -> dict[str, torch.Tensor]:
    """A batch of pictures."""
    return {"pixel_values": torch.rand(batch_size, 3, 32, 32)}


def text_pairs(batch_size: int) -> dict[str, torch.Tensor]:
    """A batch for an encoder and a decoder."""
    return tokens(batch_size) | {"decoder_input_ids": torch.randint(0, 100, (batch_size, 16))}


def noise(batch_size: int) -> tuple[torch.Tensor, ...]:
    """Noisy pictures with their time steps."""
    return torch.rand(batch_size, 3, 32, 32), torch.randint(0, 1000, (batch_size,))


def build_clip() -> Any:
    """Two towers."""
    text = SMALL_TEXT | {"max_position_embeddings": 32, "bos_token_id": 0, "eos_token_id": 1}
    config = transformers.CLIPConfig(text_config=text, vision_config=SMALL_IMAGE, projection_dim=32)
    return transformers.CLIPModel(config)


def build_llama() -> Any:
    """Grouped-query attention, no biases."""
    options = SMALL_TEXT | {"num_key_value_heads": 2, "use_cache": False}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**options))


def build_gpt2() -> Any:
    """Conv1D layers, which are addmm."""
    options = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100, "use_cache": False}
    ends = {"bos_token_id": 0, "eos_token_id": 1}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**options, **ends))


def build_t5() -> Any:
    """Encoder and decoder with position biases."""
    options = {"d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 4, "d_kv": 16}
    return transformers.T5Model(transformers.T5Config(**options, vocab_size=100, use_cache=False))


def build_unet() -> Any:
    """Convolutions, attention and skip connections."""
    return diffusers.UNet2DModel(
        sample_size=32,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
    )


def build_autoencoder() -> Any:
    """Convolutions only, up and down."""
    return diffusers.AutoencoderKL(
        block_out_channels=(16, 32),
        norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    )


def build_resnet() -> Any:
    """Residual convolutions."""
    config = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 1, 1]
    )
    return transformers.ResNetModel(config)


def build_convnext() -> Any:
    """Depthwise convolutions."""
    return transformers.ConvNextModel(
        transformers.ConvNextConfig(hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 1, 1])
    )


MODELS: dict[str, tuple[Callable[[], Any], Callable[[int], Any]]] = {
    "bert": (
        lambda: transformers.BertModel(transformers.BertConfig(**SMALL_TEXT, **NO_DROPOUT)),
        tokens,
    ),
    "bert with dropout": (
        lambda: transformers.BertModel(transformers.BertConfig(**SMALL_TEXT)),
        tokens,
    ),
    "gpt2": (build_gpt2, tokens),
    "llama": (build_llama, tokens),
    "vit": (lambda: transformers.ViTModel(transformers.ViTConfig(**SMALL_IMAGE)), images),
    "clip": (build_clip, lambda b: tokens(b) | images(b)),
    "t5": (build_t5, text_pairs),
    "resnet": (build_resnet, images),
    "convnext": (build_convnext, images),
    "unet": (build_unet, noise),
    "autoencoder": (build_autoencoder, lambda b: (torch.rand(b, 3, 32, 32),)),
}


def count_sdpa(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """torch's formula for the CPU kernel, which its counter does not know."""
    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


def count_sdpa_backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """torch's formula for the backward of the CPU kernel."""
    counted = sdpa_backward_flop_count(gradient, query, key, value)  # type: ignore[no-untyped-call]
    return int(counted)


def count_conv_backward(
    gradient: Sequence[int], image: Sequence[int], weight: Sequence[int], *rest: Any, **_: Any
) -> int:
    """Both gradients of a convolution; torch's own formula forgets the groups of the weight's."""
    transposed, output_mask = rest[4], rest[7]
    positions = math.prod((image if transposed else gradient)[2:])
    once = 2 * image[0] * positions * math.prod(weight)
    return once * (bool(output_mask[0]) + bool(output_mask[1]))


CORRECTED = {
    aten._scaled_dot_product_flash_attention_for_cpu: count_sdpa,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: count_sdpa_backward,
    aten.convolution_backward: count_conv_backward,
}


def count_eagerly(model: nn.Module, batch: Any) -> int:
    """FLOPs of one real forward and backward by torch's counter."""
    with FlopCounterMode(display=False, custom_mapping=CORRECTED) as counter:
        output = model(**batch) if isinstance(batch, dict) else model(*batch)
        leaves = [o for o in pytree.tree_leaves(output) if isinstance(o, torch.Tensor)]
        ends = [leaf for leaf in leaves if leaf.requires_grad]
        torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
    return int(counter.get_total_flops())


def unmask(graph: OpGraph) -> OpGraph:
    """The graph with all attention in full, as torch's counter counts it."""
    ops = [
        msgspec.structs.replace(op, call=re.sub(r"(is_causal=|, )True", r"\1False", op.call))
        if "attention" in op.kind
        else op
        for op in graph.ops
    ]
    return msgspec.structs.replace(graph, ops=tuple(ops))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore")
def test_flops_agree_with_torch(name: str) -> None:
    """Within 2%, at two batch sizes; attention that falls back to plain products may differ."""
    build, inputs = MODELS[name]
    torch.manual_seed(0)
    model = build().train()
    captured = trace_module(model, inputs)
    for batch_size in (2, 5):
        real = count_eagerly(model, inputs(batch_size))
        graph = unmask(captured.graph)
        counted = sum(w.counted_flops for w in count_work(graph, batch_size).values())
        assert counted == pytest.approx(real, rel=0.02)
