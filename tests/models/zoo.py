"""Models that nobody here wrote, in small sizes with random weights, and a few classics.

Each entry builds a module, makes inputs for a batch size, and may give a loss. Nothing is
downloaded.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from graphplan.frontend import load_model_file

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
VOCABULARY, WORDS, HIDDEN = 99, 8, 32


@dataclass(frozen=True)
class Entry:
    """One model: the package it needs, how it is built, and how it is expected to be captured."""

    package: str
    make: Callable[[], tuple[nn.Module, Callable[[int], Any]]]
    loss: Callable[[Any, Any], Any] | None = None
    method: str = "torch.export"
    batch: str = "dynamic"


def words(batch_size: int) -> Tensor:
    return torch.randint(3, VOCABULARY - 1, (batch_size, WORDS))


def padded(batch_size: int) -> dict[str, Tensor]:
    """A batch in which the last word of each row is padding.

    Without padding, transformers takes another attention kernel in eager than under a tracer, and
    gradients differ in the last bit.
    """
    mask = torch.ones(batch_size, WORDS, dtype=torch.int64)
    mask[:, -1] = 0
    return {
        "input_ids": words(batch_size),
        "attention_mask": mask,
        "labels": words(batch_size),
    }


def transformer(name: str, inputs: Callable[[int], Any], **config: Any) -> Callable[[], Any]:
    """A model of transformers from its config."""

    def make() -> tuple[nn.Module, Callable[[int], Any]]:
        transformers = importlib.import_module("transformers")
        family, _, kind = name.partition(".")
        made = getattr(transformers, f"{family}Config")(**config)
        return getattr(transformers, f"{family}{kind}")(made).train(), inputs

    return make


SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 2 * HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
DECODER = SIZES | {
    "num_key_value_heads": 2,
    "use_cache": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SEQ2SEQ = {
    "vocab_size": VOCABULARY,
    "d_model": HIDDEN,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 2 * HIDDEN,
    "decoder_ffn_dim": 2 * HIDDEN,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
VISION = {
    "hidden_size": HIDDEN,
    "intermediate_size": 2 * HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 8,
}


def speech(batch_size: int) -> dict[str, Tensor]:
    return {"input_features": torch.randn(batch_size, 16, 32), "labels": words(batch_size)}


def captioned(batch_size: int) -> dict[str, Any]:
    return {"input_ids": words(batch_size), "pixel_values": torch.randn(batch_size, 3, 16, 16)}


def questions(batch_size: int) -> dict[str, Tensor]:
    """Four of the words stand for the patches of an image."""
    given = padded(batch_size)
    given["input_ids"][:, :4] = VOCABULARY - 1
    return given | {"pixel_values": torch.randn(batch_size, 3, 16, 16)}


def pages(batch_size: int) -> dict[str, Tensor]:
    """Text with an image of 4 x 4 patches, which are merged into 4 words."""
    given = padded(batch_size)
    given["input_ids"][:, :6] = torch.tensor([91, 90, 90, 90, 90, 92])
    return given | {
        "pixel_values": torch.randn(16 * batch_size, 3 * 2 * 4 * 4),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * batch_size),
        "mm_token_type_ids": (given["input_ids"] == 90).long(),
    }


def contrast(output: Any, batch: Any) -> Tensor:
    scores = output["logits_per_text"]
    pairs = torch.arange(scores.shape[0])
    return functional.cross_entropy(scores, pairs) + functional.cross_entropy(scores.T, pairs)


def make_unet() -> tuple[nn.Module, Callable[[int], Any]]:
    diffusers = importlib.import_module("diffusers")
    model = diffusers.UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=4,
        norm_num_groups=4,
    )

    def inputs(batch_size: int) -> dict[str, Tensor]:
        return {
            "sample": torch.randn(batch_size, 4, 8, 8),
            "timestep": torch.arange(batch_size) * 10 + 3,
            "encoder_hidden_states": torch.randn(batch_size, 5, 16),
        }

    return model.train(), inputs


def denoise(output: Any, batch: Any) -> Tensor:
    return functional.mse_loss(output["sample"], batch["sample"])


def graph_network(name: str, **options: Any) -> Callable[[], Any]:
    """A model of torch-geometric on one whole graph: there is no batch dimension."""

    def make() -> tuple[nn.Module, Callable[[int], Any]]:
        networks = importlib.import_module("torch_geometric.nn")
        model = getattr(networks, name)(8, 16, num_layers=3, out_channels=4, dropout=0.1, **options)
        return model, whole_graph

    return make


def whole_graph(batch_size: int) -> dict[str, Tensor]:
    return {"x": torch.randn(20, 8), "edge_index": torch.randint(0, 20, (2, 60))}


def spread(output: Any, batch: Any) -> Any:
    return output.log_softmax(-1)[:, 0].neg().mean()


class Translator(nn.Module):
    """torch's own nn.Transformer between two embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.body = nn.Transformer(HIDDEN, 4, 1, 1, 2 * HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        words = self.tokens(source), self.tokens(target)
        mixed = self.body(*words, tgt_mask=mask, tgt_is_causal=True)
        return self.head(mixed)


class Recurrent(nn.Module):
    """An LSTM encoder that starts an LSTM decoder, with attention over the source."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.encoder = nn.LSTM(HIDDEN, HIDDEN, 2, batch_first=True, dropout=0.1)
        self.decoder = nn.LSTM(HIDDEN, HIDDEN, 2, batch_first=True)
        self.head = nn.Linear(2 * HIDDEN, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor) -> Any:
        seen, state = self.encoder(self.tokens(source))
        said, _ = self.decoder(self.tokens(target), state)
        context = (said @ seen.transpose(1, 2)).softmax(-1) @ seen
        return self.head(torch.cat([said, context], dim=-1))


def sentences(batch_size: int) -> dict[str, Tensor]:
    return {"source": words(batch_size), "target": words(batch_size)}


def next_words(output: Any, batch: Any) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), batch["target"].flatten())


def example(name: str, **settings: Any) -> Entry:
    """A file of examples/, shrunk."""
    file = load_model_file(EXAMPLES / f"{name}.py", settings=settings)
    return Entry("torch", lambda: (file.build(), file.inputs), loss=file.loss)


def make_resnet() -> tuple[nn.Module, Callable[[int], Any]]:
    timm = importlib.import_module("timm")
    return timm.create_model("resnet50", num_classes=10).train(), pictures


def pictures(batch_size: int) -> tuple[Tensor]:
    return (torch.randn(batch_size, 3, 32, 32),)


def squares(output: Any, batch: Any) -> Any:
    return output.pow(2).mean()


FOLLOWS = "torch.export following an example's values"
OPAQUE = f"{FOLLOWS} with opaque sub-modules"
QWEN_TEXT = DECODER | {"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}
QWEN_VISION = {
    "depth": 1,
    "embed_dim": 16,
    "hidden_size": HIDDEN,
    "num_heads": 2,
    "patch_size": 4,
    "temporal_patch_size": 2,
}
LLAVA_TEXT = DECODER | {"model_type": "llama"}
LLAVA_VISION = VISION | {"model_type": "clip_vision_model", "projection_dim": 16}

ZOO: dict[str, Entry] = {
    "BERT": Entry("transformers", transformer("Bert.ForMaskedLM", padded, **SIZES)),
    "GPT-2": Entry(
        "transformers",
        transformer(
            "GPT2.LMHeadModel", padded, vocab_size=VOCABULARY, n_embd=HIDDEN, n_layer=2, n_head=4,
            n_positions=16, use_cache=False, bos_token_id=1, eos_token_id=2,
        ),
    ),
    "T5": Entry(
        "transformers",
        transformer(
            "T5.ForConditionalGeneration", padded, vocab_size=VOCABULARY, d_model=HIDDEN, d_kv=8,
            d_ff=64, num_layers=1, num_heads=4, use_cache=False, decoder_start_token_id=0,
        ),
    ),
    "Llama": Entry("transformers", transformer("Llama.ForCausalLM", padded, **DECODER)),
    "Mixtral": Entry(
        "transformers",
        transformer("Mixtral.ForCausalLM", padded, num_local_experts=4, **DECODER),
    ),
    "Mixtral, eager experts": Entry(
        "transformers",
        transformer(
            "Mixtral.ForCausalLM", padded, num_local_experts=4, experts_implementation="eager",
            **DECODER,
        ),
        method=OPAQUE,
    ),
    "CLIP": Entry(
        "transformers",
        transformer(
            "CLIP.Model", captioned, text_config=SIZES | {"max_position_embeddings": 16,
            "eos_token_id": 2, "bos_token_id": 1}, vision_config=VISION, projection_dim=16,
        ),
        loss=contrast,
    ),
    "LLaVA": Entry(
        "transformers",
        transformer(
            "Llava.ForConditionalGeneration", questions, text_config=LLAVA_TEXT,
            vision_config=LLAVA_VISION, image_token_index=VOCABULARY - 1, vision_feature_layer=-1,
        ),
        batch="fixed",
    ),
    "Qwen2-VL": Entry(
        "transformers",
        transformer(
            "Qwen2VL.ForConditionalGeneration", pages, text_config=QWEN_TEXT,
            vision_config=QWEN_VISION, image_token_id=90, vision_start_token_id=91,
            vision_end_token_id=92, video_token_id=93,
        ),
        method=OPAQUE,
    ),
    "Whisper": Entry(
        "transformers",
        transformer(
            "Whisper.ForConditionalGeneration", speech, num_mel_bins=16, max_source_positions=16,
            max_target_positions=32, **SEQ2SEQ,
        ),
        method=FOLLOWS,
    ),
    "BART": Entry(
        "transformers",
        transformer(
            "Bart.ForConditionalGeneration", padded, max_position_embeddings=32,
            forced_eos_token_id=2, **SEQ2SEQ,
        ),
        method=FOLLOWS,
    ),
    "UNet2DCondition": Entry("diffusers", make_unet, loss=denoise),
    "GCN": Entry("torch_geometric", graph_network("GCN"), loss=spread, batch="none"),
    "GraphSAGE": Entry("torch_geometric", graph_network("GraphSAGE"), loss=spread, batch="none"),
    "GAT": Entry("torch_geometric", graph_network("GAT", heads=2), loss=spread, batch="none"),
    "DeepGCN": Entry("torch_geometric", example("gnn", layers=2, hidden=16, nodes=20).make,
                     loss=example("gnn", nodes=20).loss, batch="none"),
    "nn.Transformer": Entry("torch", lambda: (Translator(), sentences), loss=next_words),
    "LSTM seq2seq": Entry("torch", lambda: (Recurrent(), sentences), loss=next_words),
    "DLRM": example("dlrm", branches=2, width=16, rows=50, columns=8),
    "CANDLE-Uno": example("candle_uno", branches=2, width=16),
    "MMT": example("mmt", branches=2, layers=1, hidden=16, heads=2, sequence=4),
    "GPT": example("gpt", layers=1, hidden=16, heads=2, vocabulary=20, context=8),
    "two-tower": example("clip", layers=1, hidden=16, heads=2),
    "U-Net": example("unet", depth=1, width=4, size=8),
    "ResNet": example("resnet", width=4, size=32),
    "timm ResNet-50": Entry("timm", make_resnet, loss=squares),
}  # fmt: skip
