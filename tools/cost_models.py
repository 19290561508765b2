"""Models for the training set of the learned costs: random small ones, examples, outside ones.

A recipe is one model with its micro-batch sizes. Random models cover the op kinds at many shapes;
each is a model of its own. Variants of one example share their model's name, so that a split by
model never has one in training and another in validation.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graphplan.frontend import Captured, load_model_file, trace_model_file, trace_module
from tools.random_images import make_cnn, make_hourglass, make_pyramid
from tools.random_parts import Inputs, Made
from tools.random_sequences import make_mixer, make_recurrent, make_transformer, make_words
from tools.random_tables import make_mlp, make_recommender, make_towers

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
HELD_OUT = ("gpt", "resnet", "clip", "dlrm", "unet", "t5", "bert")
"""Models that the shipped cost model never sees; docs/learned.md judges it by them."""


@dataclass(frozen=True)
class Recipe:
    """A model, and the micro-batch sizes to measure it at."""

    model: str
    batch_sizes: tuple[int, ...]
    capture: Callable[[], tuple[Captured, Inputs | None]]


def list_recipes(*, seed: int, scale: float = 1.0) -> list[Recipe]:
    """All recipes in a fixed order; `scale` changes how many random ones there are."""
    recipes = list(_list_named())
    for families in (FAMILIES, LATER_FAMILIES):
        drawn = [
            (index, family)
            for family, (count, _, _) in families.items()
            for index in range(max(1, round(count * scale)))
        ]
        for index, family in sorted(drawn):
            _, make, sizes = families[family]
            key = f"{seed} {family} {index}"
            recipes.append(_random_recipe(f"{family}-{index:02d}", sizes, make, key=key))
    return recipes


def _random_recipe(
    name: str, sizes: tuple[int, ...], make: Callable[[random.Random], Made], *, key: str
) -> Recipe:
    def capture() -> tuple[Captured, Inputs]:
        module, inputs, loss = make(random.Random(key))
        return trace_module(module.train(), inputs, loss=loss, name=name), inputs

    chosen = random.Random(f"{key} sizes").sample(sizes, 3)
    return Recipe(name, tuple(sorted(chosen)), capture)


def _example(name: str, sizes: tuple[int, ...], **settings: Any) -> Recipe:
    def capture() -> tuple[Captured, Inputs | None]:
        file = load_model_file(EXAMPLES / f"{name}.py", settings=settings)
        return trace_model_file(file), file.inputs if callable(file.inputs) else None

    return Recipe(name, sizes, capture)


def _outside(name: str, sizes: tuple[int, ...], make: Callable[[], Made]) -> Recipe:
    def capture() -> tuple[Captured, Inputs]:
        module, inputs, loss = make()
        return trace_module(module.train(), inputs, loss=loss, name=name), inputs

    return Recipe(name, sizes, capture)


# -- examples and outside models -------------------------------------------------------------------


def _list_named() -> Iterator[Recipe]:
    yield _example("gpt", (2, 4, 8), layers=4, hidden=256, heads=8, vocabulary=4000, context=128)
    yield _example("gpt", (1, 4, 8), layers=6, hidden=192, heads=4, vocabulary=2000, context=96)
    yield _example("resnet", (1, 2, 4), width=24, size=112)
    yield _example("resnet", (1, 4, 8), width=16, size=64)
    yield _example("clip", (1, 2, 4), layers=2, hidden=192, heads=6)
    yield _example("clip", (1, 2, 4), layers=4, hidden=128, heads=4)
    yield _example("dlrm", (16, 64, 128), branches=4, width=768, rows=20000, columns=64)
    yield _example("dlrm", (8, 32, 64), branches=3, width=512, rows=10000, columns=64)
    yield _example("unet", (1, 2, 4), depth=3, width=16, size=96)
    yield _example("unet", (1, 2, 8), depth=2, width=24, size=64)
    yield _example("t5", (1, 2, 4), layers=2, hidden=128, heads=4, sequence=64)
    yield _outside("bert", (1, 4, 8), _transformers("Bert.ForMaskedLM", hidden=192, words=64))
    yield _example("mmt", (1, 4, 8), branches=2, layers=2, hidden=256, heads=8, sequence=64)
    yield _example("mmt", (1, 2, 4), branches=3, layers=2, hidden=128, heads=4, sequence=128)
    yield _example("candle_uno", (8, 32, 128), branches=3, width=512)
    yield _example("candle_uno", (16, 64, 256), branches=4, width=256)
    yield _example("gnn", (1,), layers=3, hidden=64, nodes=2000)
    yield _example("gnn", (1,), layers=2, hidden=96, nodes=600)
    yield _outside("gpt2", (1, 2, 8), _gpt2(hidden=128, words=64))
    yield _outside("gpt2", (1, 4, 8), _gpt2(hidden=320, words=32))
    yield _outside("llama", (1, 4, 8), _transformers("Llama.ForCausalLM", hidden=192, words=48))
    yield _outside("llama", (1, 2, 4), _transformers("Llama.ForCausalLM", hidden=320, words=96))
    yield _outside("roberta", (1, 2, 4), _transformers("Roberta.ForMaskedLM", hidden=256, words=96))
    yield _outside("diffusion", (1, 2, 4), _diffusion_unet)


def _transformers(name: str, *, hidden: int, words: int) -> Callable[[], Made]:
    """A model of transformers with a vocabulary of 2,000."""

    def make() -> Made:
        library = importlib.import_module("transformers")
        family, _, kind = name.partition(".")
        config = getattr(library, f"{family}Config")(
            vocab_size=2000, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=2,
            num_attention_heads=4, use_cache=False, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        )  # fmt: skip
        return getattr(library, f"{family}{kind}")(config), _make_text(words), None

    return make


def _gpt2(*, hidden: int, words: int) -> Callable[[], Made]:
    def make() -> Made:
        library = importlib.import_module("transformers")
        config = library.GPT2Config(
            vocab_size=2000, n_embd=hidden, n_layer=2, n_head=4, n_positions=128, use_cache=False,
            bos_token_id=1, eos_token_id=2,
        )  # fmt: skip
        return library.GPT2LMHeadModel(config), _make_text(words), None

    return make


def _make_text(words: int) -> Inputs:
    def inputs(batch_size: int) -> dict[str, Tensor]:
        mask = torch.ones(batch_size, words, dtype=torch.int64)
        mask[:, -1] = 0
        text = torch.randint(3, 2000, (batch_size, words))
        return {"input_ids": text, "attention_mask": mask, "labels": text}

    return inputs


def _diffusion_unet() -> Made:
    library = importlib.import_module("diffusers")
    model = library.UNet2DConditionModel(
        sample_size=32, block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=48,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), attention_head_dim=4,
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), norm_num_groups=8,
    )  # fmt: skip

    def inputs(batch_size: int) -> dict[str, Tensor]:
        return {
            "sample": torch.randn(batch_size, 4, 32, 32),
            "timestep": torch.arange(batch_size) * 10 + 3,
            "encoder_hidden_states": torch.randn(batch_size, 12, 48),
        }

    return model, inputs, lambda out, batch: functional.mse_loss(out["sample"], batch["sample"])


# -- random models ---------------------------------------------------------------------------------

FAMILIES: dict[str, tuple[int, Callable[[random.Random], Made], tuple[int, ...]]] = {
    "transformer": (12, make_transformer, (1, 2, 3, 4, 6, 8)),
    "cnn": (16, make_cnn, (1, 2, 3, 4, 6, 8)),
    "mlp": (9, make_mlp, (2, 8, 16, 32, 64, 128, 256)),
    "mixer": (8, make_mixer, (1, 2, 4, 8, 16)),
    "hourglass": (6, make_hourglass, (1, 2, 3, 4, 8)),
    "towers": (5, make_towers, (1, 2, 4, 8)),
    "recommender": (6, make_recommender, (4, 8, 16, 32, 64, 128)),
    "recurrent": (3, make_recurrent, (1, 4, 8, 16)),
}
"""How many random models of a family, who makes them, and micro-batch sizes to choose from."""

LATER_FAMILIES: dict[str, tuple[int, Callable[[random.Random], Made], tuple[int, ...]]] = {
    "pyramid": (7, make_pyramid, (1, 2, 4, 6, 8)),
    "words": (5, make_words, (1, 2, 4, 8)),
}
"""Families that were added after the first runs; they stand behind, so that numbers stay."""
