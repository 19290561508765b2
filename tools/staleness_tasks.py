"""Small training tasks cut into stages, for the staleness experiments; all data is made here.

cnn           8x8 images of ten noisy, shifted prototypes; two convolutions, two linear layers
lstm          sequences of nine of four symbols, whose most frequent one is the class; two LSTM
              layers
translation   sequences of six symbols to their substituted reverse; attention encoder and decoder
charlm        the next letter of sentences of a small grammar from the eight before it; residual MLP

The data of a task is the same for all seeds; a seed draws weights and the order of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tools.staleness_torch import StagedModel, StageLayout, Views, apply_linear

EVERYTHING = -1
"""The micro-batch that holds all training samples."""
NUM_SAMPLES = 512
NUM_EPOCHS = 10
RunStage = Callable[[int, Views, tuple[Tensor, ...], Tensor], Tensor]
"""Stage, parameters, inputs and sample numbers [runs, batch] -> output."""


@dataclass(frozen=True)
class Task:
    """A model's stages and how to run them on samples by their numbers."""

    name: str
    layouts: tuple[StageLayout, ...]
    run_samples: RunStage
    batch_size: int

    def make_model(self, seeds: Sequence[int]) -> StagedModel:
        """All runs of these seeds; micro-batch i of a seed is a fixed draw of samples."""
        orders = {seed: self._draw_order(seed) for seed in set(seeds)}
        everything = torch.arange(NUM_SAMPLES).expand(len(seeds), -1)

        def run_stage(
            stage: int, views: Views, inputs: tuple[Tensor, ...], micro_batch: int
        ) -> Tensor:
            if micro_batch == EVERYTHING:
                return self.run_samples(stage, views, inputs, everything)
            per_epoch = NUM_SAMPLES // self.batch_size
            first = micro_batch % (NUM_EPOCHS * per_epoch) * self.batch_size
            chosen = [orders[seed][first : first + self.batch_size] for seed in seeds]
            return self.run_samples(stage, views, inputs, torch.stack(chosen))

        return StagedModel(self.layouts, run_stage, seeds)

    def _draw_order(self, seed: int) -> Tensor:
        """Epochs, each in an order of its own; after the last the first comes again."""
        generator = torch.Generator().manual_seed(77_000 + seed)
        epochs = [torch.randperm(NUM_SAMPLES, generator=generator) for _ in range(NUM_EPOCHS)]
        return torch.cat(epochs)


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of every run: logits [runs, rows, classes], labels [runs, rows]."""
    each = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return each.view(labels.shape).mean(1)


def convolve(images: Tensor, matrix: Tensor, bias: Tensor) -> Tensor:
    """3x3 convolution of [runs, batch, channels, side, side] as one matrix product."""
    runs, batch, channels, side, _ = images.shape
    patches = functional.unfold(images.reshape(-1, channels, side, side), 3, padding=1)
    rows = patches.view(runs, batch, channels * 9, -1).transpose(2, 3).flatten(1, 2)
    out = apply_linear(rows, matrix, bias)
    return out.view(runs, batch, side, side, -1).permute(0, 1, 4, 2, 3)


def pool(images: Tensor) -> Tensor:
    """2x2 max pooling."""
    runs, batch, channels, side, _ = images.shape
    pooled = functional.max_pool2d(images.flatten(0, 1), 2)
    return pooled.view(runs, batch, channels, side // 2, side // 2)


def make_cnn() -> Task:
    """Four stages: convolution, convolution, linear, linear."""
    generator = torch.Generator().manual_seed(1)
    prototypes = torch.randn(10, 8, 8, generator=generator)
    labels = torch.randint(10, (NUM_SAMPLES,), generator=generator)
    shifts = torch.randint(-1, 2, (NUM_SAMPLES, 2), generator=generator).tolist()
    clean = torch.stack(
        [
            torch.roll(prototypes[int(label)], tuple(shift), (0, 1))
            for label, shift in zip(labels, shifts, strict=True)
        ]
    )
    images = clean + 0.7 * torch.randn(clean.shape, generator=generator)

    def run(stage: int, p: Views, inputs: tuple[Tensor, ...], chosen: Tensor) -> Tensor:
        if stage == 0:
            return pool(convolve(images[chosen].unsqueeze(2), p("w"), p("b")).relu())
        if stage == 1:
            return pool(convolve(inputs[0], p("w"), p("b")).relu()).flatten(2)
        if stage == 2:
            return apply_linear(inputs[0], p("w"), p("b")).relu()
        return mean_loss(apply_linear(inputs[0], p("w"), p("b")), labels[chosen])

    shapes = ((9, 6), (54, 8), (32, 24), (24, 10))
    return Task("cnn", tuple(map(_layout, shapes)), run, 16)


def _layout(shape: tuple[int, int]) -> StageLayout:
    return StageLayout({"w": shape, "b": (shape[1],)})


def run_lstm(inputs: Tensor, p: Views, hidden: int) -> Tensor:
    """An LSTM over [runs, batch, time, features] -> the same with hidden features."""
    runs, batch, steps, _ = inputs.shape
    driven = apply_linear(inputs.flatten(1, 2), p("wx"), p("b")).view(runs, batch, steps, -1)
    state = inputs.new_zeros(runs, batch, hidden)
    cell = inputs.new_zeros(runs, batch, hidden)
    outputs = []
    for step in range(steps):
        gates = torch.baddbmm(driven[:, :, step], state, p("wh"))
        gate_in, forget, out = gates[..., : 3 * hidden].sigmoid().chunk(3, dim=-1)
        cell = forget * cell + gate_in * gates[..., 3 * hidden :].tanh()
        state = out * cell.tanh()
        outputs.append(state)
    return torch.stack(outputs, dim=2)


def make_lstm() -> Task:
    """Four stages: embedding, LSTM, LSTM, linear on the last state."""
    symbols, steps, hidden = 4, 9, 16
    generator = torch.Generator().manual_seed(2)
    texts = torch.randint(symbols, (NUM_SAMPLES, steps), generator=generator)
    letters = functional.one_hot(texts, symbols).float()
    labels = letters.sum(1).argmax(1)  # of equally frequent ones the first

    def run(stage: int, p: Views, inputs: tuple[Tensor, ...], chosen: Tensor) -> Tensor:
        if stage == 0:
            rows = letters[chosen].flatten(1, 2)
            return apply_linear(rows, p("w"), p("b")).view(*chosen.shape, steps, hidden)
        if stage in (1, 2):
            return run_lstm(inputs[0], p, hidden)
        return mean_loss(apply_linear(inputs[0][:, :, -1], p("w"), p("b")), labels[chosen])

    recurrent = StageLayout(
        {"wx": (hidden, 4 * hidden), "wh": (hidden, 4 * hidden), "b": (4 * hidden,)}
    )
    layouts = (_layout((symbols, hidden)), recurrent, recurrent, _layout((hidden, symbols)))
    return Task("lstm", layouts, run, 16)


def attend(queries: Tensor, memory: Tensor, p: Views, *, causal: bool) -> Tensor:
    """One head of attention with a residual; [runs, batch, time, width]."""
    runs, batch, steps, width = queries.shape
    query = torch.bmm(queries.flatten(1, 2), p("q")).view(runs, batch, steps, width)
    both = torch.bmm(memory.flatten(1, 2), p("kv")).view(runs, batch, steps, 2 * width)
    key, value = both.chunk(2, dim=-1)
    scores = query @ key.transpose(-1, -2) / width**0.5
    if causal:
        ahead = torch.ones(steps, steps, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(ahead, -1e9)
    mixed: Tensor = scores.softmax(-1) @ value
    return queries + mixed


def normalize(values: Tensor) -> Tensor:
    """Layer normalisation without parameters."""
    return functional.layer_norm(values, values.shape[-1:])


def transform(values: Tensor, p: Views) -> Tensor:
    """A residual layer of width 2 x width."""
    rows = normalize(values).flatten(1, 2)
    inner = apply_linear(rows, p("w1"), p("b1")).relu()
    return values + apply_linear(inner, p("w2"), p("b2")).view_as(values)


def make_translation() -> Task:
    """Four stages: source embedding and encoder, decoder embedding, cross attention, output."""
    symbols, steps, width = 8, 6, 16
    generator = torch.Generator().manual_seed(3)
    source = torch.randint(symbols, (NUM_SAMPLES, steps), generator=generator)
    target = torch.randperm(symbols, generator=generator)[source].flip(1)
    given = torch.cat([torch.full((NUM_SAMPLES, 1), symbols), target[:, :-1]], dim=1)
    places = torch.eye(steps).expand(NUM_SAMPLES, -1, -1)
    read = torch.cat([functional.one_hot(source, symbols).float(), places], dim=-1)
    shown = torch.cat([functional.one_hot(given, symbols + 1).float(), places], dim=-1)

    def embed(rows: Tensor, p: Views) -> Tensor:
        found = apply_linear(rows.flatten(1, 2), p("w"), p("b"))
        return found.view(*rows.shape[:3], width)

    def run(stage: int, p: Views, inputs: tuple[Tensor, ...], chosen: Tensor) -> Tensor:
        if stage == 0:
            found = embed(read[chosen], p)
            return transform(attend(found, found, p, causal=False), p)
        if stage == 1:
            own = embed(shown[chosen], p)
            return torch.cat([inputs[0], attend(own, own, p, causal=True)], dim=-1)
        if stage == 2:
            memory, own = inputs[0].chunk(2, dim=-1)
            return transform(attend(normalize(own), normalize(memory), p, causal=False), p)
        rows = normalize(inputs[0]).flatten(1, 2)
        logits = apply_linear(rows, p("w"), p("b"))
        return mean_loss(logits, target[chosen].flatten(1))

    heads: dict[str, tuple[int, ...]] = {"q": (width, width), "kv": (width, 2 * width)}
    inner: dict[str, tuple[int, ...]] = {
        "w1": (width, 2 * width),
        "b1": (2 * width,),
        "w2": (2 * width, width),
        "b2": (width,),
    }
    first = StageLayout({"w": (symbols + steps, width), "b": (width,), **heads, **inner})
    second = StageLayout({"w": (symbols + 1 + steps, width), "b": (width,), **heads})
    layouts = (first, second, StageLayout({**heads, **inner}), _layout((width, symbols)))
    return Task("translation", layouts, run, 16)


def make_text(num_letters: int) -> str:
    """Sentences of a small grammar, always the same."""
    generator = torch.Generator().manual_seed(4)
    parts = (
        ("the ", "a ", "one "),
        ("old ", "red ", "quick ", ""),
        ("cat ", "dog ", "fox ", "bird "),
        ("sees ", "finds ", "likes "),
        ("the ", "a "),
        ("mouse", "tree", "house", "river"),
        (". ",),
    )
    text = ""
    while len(text) < num_letters:
        for words in parts:
            text += words[int(torch.randint(len(words), (1,), generator=generator))]
    return text[:num_letters]


def make_charlm(num_stages: int) -> Task:
    """One embedding, residual layers, one output layer."""
    context, width = 8, 24
    text = make_text(NUM_SAMPLES + context)
    alphabet = sorted(set(text))
    numbers = torch.tensor([alphabet.index(letter) for letter in text])
    windows = numbers.unfold(0, context + 1, 1)[:NUM_SAMPLES]
    letters = functional.one_hot(windows[:, :-1], len(alphabet)).float().flatten(1)
    following = windows[:, -1]

    def run(stage: int, p: Views, inputs: tuple[Tensor, ...], chosen: Tensor) -> Tensor:
        if stage == 0:
            return apply_linear(letters[chosen], p("w"), p("b")).relu()
        if stage < num_stages - 1:
            return inputs[0] + apply_linear(normalize(inputs[0]), p("w"), p("b")).relu()
        logits = apply_linear(normalize(inputs[0]), p("w"), p("b"))
        return mean_loss(logits, following[chosen])

    shapes = [(letters.shape[1], width), *[(width, width)] * (num_stages - 2)]
    shapes.append((width, len(alphabet)))
    return Task("charlm", tuple(map(_layout, shapes)), run, 8)


TASKS: dict[str, Callable[[], Task]] = {
    "cnn": make_cnn,
    "lstm": make_lstm,
    "translation": make_translation,
}
