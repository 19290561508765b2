"""Models for the training set of the learned costs: random small ones, examples, outside ones.

A recipe is one model with its micro-batch sizes. Random models cover the op kinds at many shapes;
each is a model of its own. Variants of one example share their model's name, so that a split by
model never has one in training and another in validation.
"""

from __future__ import annotations

import importlib
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from graphplan.frontend import Captured, load_model_file, trace_model_file, trace_module

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
HELD_OUT = ("gpt", "resnet", "clip", "dlrm", "unet", "t5", "bert")
"""Models that the shipped cost model never sees; docs/learned.md judges it by them."""
ACTIVATIONS = ("relu", "gelu", "silu", "tanh", "sigmoid", "leaky_relu")

Inputs = Callable[[int], Any]
Loss = Callable[[Any, Any], Tensor]
Made = tuple[nn.Module, Inputs, Loss | None]


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


def _pick_width(source: random.Random, low: int, high: int, step: int = 8) -> int:
    """A multiple of `step`, spread evenly over the orders of magnitude."""
    width = float(low * (high / low) ** source.random())
    return max(step, round(width / step) * step)


def _activate(name: str, x: Tensor) -> Tensor:
    found: Tensor = torch.tanh(x) if name == "tanh" else getattr(functional, name)(x)
    return found


def _classify(output: Tensor, batch: Any) -> Tensor:
    return functional.cross_entropy(output, batch["labels"])


class Mlp(nn.Module):
    """Linear layers with norms, activations, dropout and residual sums."""

    def __init__(self, source: random.Random) -> None:
        super().__init__()
        self.width, depth = _pick_width(source, 32, 1536), source.randint(3, 5)
        self.features = _pick_width(source, 16, 1024)
        widths = [self.features, self.width]
        for _ in range(depth):
            same = source.random() < 0.5
            widths.append(widths[-1] if same else _pick_width(source, 32, 1536))
        pairs = list(itertools.pairwise(widths))
        bias = source.random() < 0.8
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=bias) for a, b in pairs)
        norms: list[Callable[[int], nn.Module]] = [nn.LayerNorm, nn.BatchNorm1d, nn.RMSNorm]
        self.norms = nn.ModuleList(
            source.choice(norms)(b) if source.random() < 0.6 else nn.Identity() for _, b in pairs
        )
        self.acts = [source.choice(ACTIVATIONS) for _ in pairs]
        self.dropout = source.choice((0.0, 0.1))
        self.head = nn.Linear(widths[-1], source.choice((2, 10, 100, 1000)))

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm, act in zip(self.layers, self.norms, self.acts, strict=True):
            y = _activate(act, norm(layer(x)))
            if self.dropout:
                y = functional.dropout(y, self.dropout)
            x = x + y if y.shape == x.shape else y
        scores: Tensor = self.head(x)
        return scores


def make_mlp(source: random.Random) -> Made:
    """A random MLP."""
    model = Mlp(source)
    classes = model.head.out_features

    def inputs(batch_size: int) -> dict[str, Tensor]:
        return {
            "x": torch.randn(batch_size, model.features),
            "labels": torch.randint(0, classes, (batch_size,)),
        }

    return model, inputs, _classify


class ConvBlock(nn.Module):
    """A convolution with norm, activation and, where it fits, a residual sum."""

    def __init__(self, source: random.Random, channels: int, width: int) -> None:
        super().__init__()
        kernel, stride = source.choice((1, 1, 3, 3, 3, 5, 7)), source.choice((1, 1, 1, 2))
        depthwise = source.random() < 0.2
        width = channels if depthwise else width
        groups = channels if depthwise else 1
        self.width, self.stride = width, stride
        bias = source.random() < 0.4
        self.conv = nn.Conv2d(
            channels, width, kernel, stride, padding=kernel // 2, groups=groups, bias=bias
        )
        norms: list[Callable[[int], nn.Module]] = [
            nn.BatchNorm2d, nn.BatchNorm2d, lambda w: nn.GroupNorm(4, w), lambda w: nn.Identity()
        ]  # fmt: skip
        self.norm = source.choice(norms)(width)
        self.act = source.choice(("relu", "relu", "relu", "silu", "gelu", "leaky_relu"))
        self.residual = source.random() < 0.6

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        if self.residual and y.shape == x.shape:
            y = y + x
        return _activate(self.act, y)


class Cnn(nn.Module):
    """Convolution blocks with pooling between them."""

    def __init__(self, source: random.Random) -> None:
        super().__init__()
        self.size = source.choice((16, 24, 32, 48, 64, 96, 112))
        width = _pick_width(source, 8, 64 if self.size > 48 else 160, 4)
        self.stem = nn.Conv2d(3, width, source.choice((3, 7)), source.choice((1, 2)), padding=3)
        blocks, channels = [], width
        for _ in range(source.randint(4, 7)):
            grows = source.random() < 0.4
            block = ConvBlock(source, channels, min(512, channels * 2) if grows else channels)
            blocks.append(block)
            channels = block.width
        self.blocks = nn.ModuleList(blocks)
        self.pools = [source.choice(("", "", "max", "avg")) for _ in blocks]
        self.head = nn.Linear(channels, source.choice((10, 100, 1000)))

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for block, pool in zip(self.blocks, self.pools, strict=True):
            x = block(x)
            if pool and x.shape[-1] >= 8:
                x = functional.max_pool2d(x, 2) if pool == "max" else functional.avg_pool2d(x, 2)
        scores: Tensor = self.head(x.mean((2, 3)))
        return scores


def make_cnn(source: random.Random) -> Made:
    """A random convolutional chain."""
    model = Cnn(source)
    classes = model.head.out_features

    def inputs(batch_size: int) -> dict[str, Tensor]:
        return {
            "images": torch.randn(batch_size, 3, model.size, model.size),
            "labels": torch.randint(0, classes, (batch_size,)),
        }

    return model, inputs, _classify


class TransformerLayer(nn.Module):
    """Attention (fused or written out) and a feed-forward layer (plain or gated)."""

    def __init__(self, source: random.Random, hidden: int) -> None:
        super().__init__()
        self.heads = source.choice([heads for heads in (2, 4, 8) if hidden % (heads * 8) == 0])
        self.fused, self.joint = source.random() < 0.6, source.random() < 0.5
        self.gated, self.causal = source.random() < 0.3, source.random() < 0.5
        self.dropout = source.choice((0.0, 0.0, 0.1))
        self.attention_dropout, self.masked = source.choice((0.0, 0.0, 0.1)), source.random() < 0.4
        norm = source.choice((nn.LayerNorm, nn.LayerNorm, nn.RMSNorm))
        bias = source.random() < 0.7
        self.first, self.second = norm(hidden), norm(hidden)
        wide = source.choice((2, 3, 4)) * hidden
        self.qkv = nn.ModuleList(
            [nn.Linear(hidden, 3 * hidden, bias=bias)]
            if self.joint
            else [nn.Linear(hidden, hidden, bias=bias) for _ in range(3)]
        )
        self.out = nn.Linear(hidden, hidden, bias=bias)
        self.up = nn.Linear(hidden, wide, bias=bias)
        self.gate = nn.Linear(hidden, wide, bias=bias) if self.gated else None
        self.down = nn.Linear(wide, hidden, bias=bias)
        self.act = source.choice(("gelu", "relu", "silu"))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.out(self._attend(self.first(x)))
        y = self.second(x)
        wide = _activate(self.act, self.up(y))
        if self.gate is not None:
            wide = wide * self.gate(y)
        z = self.down(wide)
        return x + (functional.dropout(z, self.dropout) if self.dropout else z)

    def _attend(self, x: Tensor) -> Tensor:
        parts = self.qkv[0](x).chunk(3, -1) if self.joint else [layer(x) for layer in self.qkv]
        shape = (self.heads, x.shape[-1] // self.heads)
        q, k, v = (part.unflatten(-1, shape).transpose(1, 2) for part in parts)
        if self.fused:
            mask = torch.zeros(x.shape[1], x.shape[1]) if self.masked else None
            mixed = functional.scaled_dot_product_attention(
                q, k, v, mask, self.attention_dropout, is_causal=self.causal and not self.masked
            )
        else:
            scores = q @ k.transpose(-2, -1) / shape[1] ** 0.5
            shares = scores.softmax(-1)
            if self.attention_dropout:
                shares = functional.dropout(shares, self.attention_dropout)
            mixed = shares @ v
        return mixed.transpose(1, 2).flatten(-2)


class Transformer(nn.Module):
    """Embedded words through a few layers to a vocabulary."""

    def __init__(self, source: random.Random) -> None:
        super().__init__()
        hidden = _pick_width(source, 64, 512, 32)
        self.words = source.choice((16, 32, 50, 64, 96, 128, 197, 256, 512))
        large = (20000, 50000) if self.words < 64 else ()
        self.vocabulary = source.choice((200, 1000, 2000, 5000, *large))
        self.tokens = nn.Embedding(self.vocabulary, hidden)
        self.places = nn.Embedding(self.words, hidden)
        self.layers = nn.ModuleList(TransformerLayer(source, hidden) for _ in range(2))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, self.vocabulary, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.tokens(words) + self.places(torch.arange(words.shape[1]))
        for layer in self.layers:
            x = layer(x)
        scores: Tensor = self.head(self.norm(x))
        return scores


def make_transformer(source: random.Random) -> Made:
    """A random language model."""
    model = Transformer(source)

    def inputs(batch_size: int) -> dict[str, Tensor]:
        size = (batch_size, model.words)
        return {
            "words": torch.randint(0, model.vocabulary, size),
            "labels": torch.randint(0, model.vocabulary, size),
        }

    def loss(output: Tensor, batch: Any) -> Tensor:
        return functional.cross_entropy(output.flatten(0, 1), batch["labels"].flatten())

    return model, inputs, loss


class Recommender(nn.Module):
    """Bags of embeddings and dense towers, concatenated."""

    def __init__(self, source: random.Random) -> None:
        super().__init__()
        self.bags, self.bag = source.randint(1, 3), source.choice((5, 20, 50, 100))
        self.rows, columns = _pick_width(source, 500, 60000), source.choice((16, 32, 64, 128))
        self.features, width = _pick_width(source, 8, 64), _pick_width(source, 64, 1024)
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(self.rows, columns, mode=source.choice(("sum", "mean")))
            for _ in range(self.bags)
        )
        self.dense = nn.Sequential(
            nn.Linear(self.features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.top = nn.Sequential(
            nn.Linear(width + columns * self.bags, width), nn.ReLU(), nn.Linear(width, 1)
        )

    def forward(self, numbers: Tensor, rows: list[Tensor]) -> Tensor:
        sparse = [table(each) for table, each in zip(self.tables, rows, strict=True)]
        score: Tensor = self.top(torch.cat([self.dense(numbers), *sparse], -1)).squeeze(-1)
        return score


def make_recommender(source: random.Random) -> Made:
    """A random click model."""
    model = Recommender(source)

    def inputs(batch_size: int) -> dict[str, Any]:
        return {
            "numbers": torch.randn(batch_size, model.features),
            "rows": [
                torch.randint(0, model.rows, (batch_size, model.bag)) for _ in range(model.bags)
            ],
            "clicked": torch.randint(0, 2, (batch_size,)).float(),
        }

    def loss(output: Tensor, batch: Any) -> Tensor:
        return functional.binary_cross_entropy_with_logits(output, batch["clicked"])

    return model, inputs, loss


class Towers(nn.Module):
    """Patches of an image and numbers, each through a tower, compared."""

    def __init__(self, source: random.Random) -> None:
        super().__init__()
        hidden, self.patch = _pick_width(source, 64, 320, 32), source.choice((8, 16, 32))
        self.size = self.patch * source.choice((4, 7))
        self.patches = nn.Conv2d(3, hidden, self.patch, self.patch)
        self.places = nn.Parameter(torch.zeros((self.size // self.patch) ** 2, hidden))
        self.layer = TransformerLayer(source, hidden)
        self.features = _pick_width(source, 16, 512)
        self.other = nn.Sequential(
            nn.Linear(self.features, 2 * hidden), nn.GELU(), nn.Linear(2 * hidden, hidden)
        )
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, images: Tensor, numbers: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.places
        a = functional.normalize(self.layer(x).mean(1), dim=-1)
        b = functional.normalize(self.other(numbers), dim=-1)
        scores: Tensor = self.scale.exp() * a @ b.T
        return scores


def make_towers(source: random.Random) -> Made:
    """A random two-tower model."""
    model = Towers(source)

    def inputs(batch_size: int) -> dict[str, Tensor]:
        return {
            "images": torch.randn(batch_size, 3, model.size, model.size),
            "numbers": torch.randn(batch_size, model.features),
        }

    def loss(output: Tensor, batch: Any) -> Tensor:
        pairs = torch.arange(output.shape[0], device=output.device)
        return functional.cross_entropy(output, pairs) + functional.cross_entropy(output.T, pairs)

    return model, inputs, loss


class Hourglass(nn.Module):
    """Down and up again, with skips that are concatenated."""

    def __init__(self, source: random.Random) -> None:
        super().__init__()
        width, self.size = _pick_width(source, 8, 48, 4), source.choice((32, 48, 64, 96, 128))
        self.transposed = source.random() < 0.5
        self.down = nn.ModuleList(
            [self._block(3, width), self._block(width, 2 * width), self._block(2 * width, width)]
        )
        up = nn.ConvTranspose2d(width, width, 2, 2) if self.transposed else nn.Identity()
        self.up = up
        self.merge = self._block(3 * width, width)
        self.head = nn.Conv2d(width, 5, 1)

    def _block(self, channels: int, width: int) -> nn.Module:
        conv = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(width), nn.ReLU())

    def forward(self, images: Tensor) -> Tensor:
        skip = self.down[1](self.down[0](images))
        low = self.down[2](functional.max_pool2d(skip, 2))
        up = self.up(low) if self.transposed else functional.interpolate(low, scale_factor=2)
        scores: Tensor = self.head(self.merge(torch.cat([up, skip], 1)))
        return scores


def make_hourglass(source: random.Random) -> Made:
    """A random small U-net."""
    model = Hourglass(source)

    def inputs(batch_size: int) -> dict[str, Tensor]:
        size = (batch_size, model.size, model.size)
        return {
            "images": torch.randn(batch_size, 3, model.size, model.size),
            "labels": torch.randint(0, 5, size),
        }

    return model, inputs, _classify


class Recurrent(nn.Module):
    """Embedded words through an LSTM or a GRU."""

    def __init__(self, source: random.Random) -> None:
        super().__init__()
        hidden = _pick_width(source, 32, 256, 16)
        self.words, self.vocabulary = source.choice((10, 20, 40)), 1000
        self.tokens = nn.Embedding(self.vocabulary, hidden)
        kind = source.choice((nn.LSTM, nn.GRU))
        self.body = kind(hidden, hidden, source.choice((1, 2)), batch_first=True)
        self.head = nn.Linear(hidden, self.vocabulary)

    def forward(self, words: Tensor) -> Tensor:
        seen, _ = self.body(self.tokens(words))
        scores: Tensor = self.head(seen)
        return scores


def make_recurrent(source: random.Random) -> Made:
    """A random recurrent language model."""
    model = Recurrent(source)

    def inputs(batch_size: int) -> dict[str, Tensor]:
        words = torch.randint(0, model.vocabulary, (batch_size, model.words))
        return {"words": words, "labels": words}

    def loss(output: Tensor, batch: Any) -> Tensor:
        return functional.cross_entropy(output.flatten(0, 1), batch["labels"].flatten())

    return model, inputs, loss


class Mixer(nn.Module):
    """A random DAG of elementwise, reducing and copying ops over [batch, rows, columns]."""

    OPS = (
        "add", "mul", "sub", "div", "cat", "relu", "exp", "pow", "rsqrt", "softmax", "mean", "sum",
        "neg", "where", "square", "transpose", "log_softmax", "matmul", "linear", "clone", "scale",
        "masked_fill", "stack", "dropout", "sigmoid", "abs",
    )  # fmt: skip

    def __init__(self, source: random.Random) -> None:
        super().__init__()
        self.rows, self.columns = _pick_width(source, 8, 192), _pick_width(source, 16, 640)
        self.linear = nn.Linear(self.columns, self.columns)
        self.steps = [(source.choice(self.OPS), source.randint(0, 99)) for _ in range(22)]

    def forward(self, x: Tensor) -> Tensor:
        values = [self.linear(x), x * 0.5]
        for name, place in self.steps:
            first, second = values[-1], values[place % len(values)]
            values.append(self._mix(name, first, second))
        return torch.stack([value.mean() for value in values[-6:]]).sum()

    def _mix(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        simple: dict[str, Callable[[], Tensor]] = {
            "add": lambda: a + b, "mul": lambda: a * b, "sub": lambda: a - b,
            "div": lambda: a / (b.abs() + 1), "relu": lambda: a.relu(), "neg": lambda: -a,
            "exp": lambda: (-a.abs()).exp(), "pow": lambda: a.pow(2), "square": lambda: a.square(),
            "rsqrt": lambda: (a.abs() + 1).rsqrt(), "softmax": lambda: a.softmax(-1),
            "log_softmax": lambda: a.log_softmax(-1), "linear": lambda: self.linear(a),
            "mean": lambda: a - a.mean(-1, keepdim=True), "clone": lambda: a.clone(),
            "sum": lambda: a + b.sum(1, keepdim=True), "scale": lambda: a * 0.125,
            "where": lambda: torch.where(a > 0, a, b), "sigmoid": lambda: a.sigmoid(),
            "masked_fill": lambda: a.masked_fill(b < 0, 0.0), "abs": lambda: a.abs(),
            "dropout": lambda: functional.dropout(a, 0.1),
            "stack": lambda: torch.stack([a, b], 1).mean(1),
            "cat": lambda: torch.cat([a, b], -1).view(*a.shape[:2], 2, self.columns).mean(2),
            "transpose": lambda: (a.transpose(1, 2) * 1.5).transpose(1, 2).contiguous(),
            "matmul": lambda: (a @ b.transpose(1, 2)).softmax(-1) @ b,
        }  # fmt: skip
        return simple[name]()


def make_mixer(source: random.Random) -> Made:
    """A random DAG of small ops."""
    model = Mixer(source)

    def inputs(batch_size: int) -> dict[str, Tensor]:
        return {"x": torch.randn(batch_size, model.rows, model.columns)}

    return model, inputs, lambda output, batch: output


class Pyramid(nn.Module):
    """Bottlenecks of many channels on few pixels, as at the end of a ResNet."""

    def __init__(self, source: random.Random) -> None:
        super().__init__()
        self.channels, self.size = _pick_width(source, 64, 512, 16), source.choice((4, 7, 8, 14))
        width, blocks = self.channels // source.choice((2, 4)), []
        for stride in (1, source.choice((1, 2)), 2):
            for a, b, kernel, step in (
                (self.channels, width, 1, 1),
                (width, width, 3, stride),
                (width, self.channels, 1, 1),
            ):
                conv = nn.Conv2d(a, b, kernel, step, padding=kernel // 2, bias=False)
                blocks += [conv, nn.BatchNorm2d(b), nn.ReLU()]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(self.channels, source.choice((10, 1000)))

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.head(self.blocks(images).mean((2, 3)))
        return scores


def make_pyramid(source: random.Random) -> Made:
    """The end of a random ResNet."""
    model = Pyramid(source)

    def inputs(batch_size: int) -> dict[str, Tensor]:
        return {
            "images": torch.randn(batch_size, model.channels, model.size, model.size),
            "labels": torch.randint(0, model.head.out_features, (batch_size,)),
        }

    return model, inputs, _classify


class Words(nn.Module):
    """A large vocabulary at both ends."""

    def __init__(self, source: random.Random) -> None:
        super().__init__()
        self.rows, columns = _pick_width(source, 15000, 60000), _pick_width(source, 64, 256, 16)
        self.words, classes = source.choice((8, 16, 32, 77)), source.choice((100, 10000, 30000))
        self.tokens, self.norm = nn.Embedding(self.rows, columns), nn.LayerNorm(columns)
        self.head = nn.Linear(columns, classes, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        scores: Tensor = self.head(self.norm(self.tokens(words)).mean(1))
        return scores


def make_words(source: random.Random) -> Made:
    """A classifier of words from a large vocabulary."""
    model = Words(source)

    def inputs(batch_size: int) -> dict[str, Tensor]:
        return {
            "words": torch.randint(0, model.rows, (batch_size, model.words)),
            "labels": torch.randint(0, model.head.out_features, (batch_size,)),
        }

    return model, inputs, _classify


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
