"""Models of diffusers, torch-geometric and peft, and of plain torch with rarer parts."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.models.zoo import (
    DECODER,
    HIDDEN,
    VOCABULARY,
    WORDS,
    Entry,
    graph_network,
    next_words,
    padded,
    spread,
    transformer,
    words,
)

Made = tuple[nn.Module, Callable[[int], Any]]


def diffuser(name: str, inputs: Callable[[int], Any], **config: Any) -> Callable[[], Made]:
    """A model of diffusers in training mode."""

    def make() -> Made:
        return getattr(importlib.import_module("diffusers"), name)(**config).train(), inputs

    return make


def pictures(batch_size: int) -> dict[str, Tensor]:
    return {"sample": torch.randn(batch_size, 3, 16, 16)}


def reconstruct(output: Any, batch: Any) -> Tensor:
    return functional.mse_loss(output["sample"], batch["sample"])


def labelled_noise(batch_size: int) -> dict[str, Tensor]:
    return {
        "hidden_states": torch.randn(batch_size, 4, 8, 8),
        "timestep": torch.arange(batch_size) * 7 + 1,
        "class_labels": torch.arange(batch_size) % 3,
    }


def guided_noise(batch_size: int) -> dict[str, Tensor]:
    return {
        "hidden_states": torch.randn(batch_size, 4, 8, 8),
        "encoder_hidden_states": torch.randn(batch_size, 5, 16),
        "pooled_projections": torch.randn(batch_size, 16),
        "timestep": torch.arange(batch_size) * 7 + 1,
    }


def remove_noise(output: Any, batch: Any) -> Any:
    return output["sample"].pow(2).mean()


def film(batch_size: int) -> dict[str, Tensor]:
    return {
        "sample": torch.randn(batch_size, 4, 3, 8, 8),
        "timestep": torch.arange(batch_size) * 7 + 1,
        "encoder_hidden_states": torch.randn(batch_size, 5, 16),
    }


def related(batch_size: int) -> dict[str, Tensor]:
    return {
        "x": torch.randn(20, 8),
        "edge_index": torch.randint(0, 20, (2, 60)),
        "edge_type": torch.randint(0, 3, (60,)),
    }


class Relations(nn.Module):
    """Two relational convolutions of torch-geometric."""

    def __init__(self) -> None:
        super().__init__()
        layer = importlib.import_module("torch_geometric.nn").RGCNConv
        self.first, self.second = layer(8, 16, 3), layer(16, 4, 3)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Any:
        return self.second(self.first(x, edge_index, edge_type).relu(), edge_index, edge_type)


class Attends(nn.Module):
    """A graph transformer of torch-geometric, pooled over the whole graph."""

    def __init__(self) -> None:
        super().__init__()
        networks = importlib.import_module("torch_geometric.nn")
        self.first = networks.TransformerConv(8, 8, heads=2, dropout=0.1)
        self.norm = networks.GraphNorm(16)
        self.second = networks.GINEConv(nn.Linear(16, 4), edge_dim=8)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Any:
        return self.second(self.norm(self.first(x, edge_index)).relu(), edge_index, edge_attr)


def weighted(batch_size: int) -> dict[str, Tensor]:
    return {
        "x": torch.randn(20, 8),
        "edge_index": torch.randint(0, 20, (2, 60)),
        "edge_attr": torch.randn(60, 8),
    }


def adapted(base: str, config: str, adapter: dict[str, Any], **sizes: Any) -> Callable[[], Made]:
    """A model of transformers under an adapter of peft."""

    def make() -> Made:
        peft = importlib.import_module("peft")
        model, inputs = transformer(base, padded, **sizes)()
        return peft.get_peft_model(model, getattr(peft, config)(**adapter)), inputs

    return make


class Adversaries(nn.Module):
    """A GAN: both players see the same images, each is graded by a loss of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(8, 4 * 16), nn.Unflatten(1, (4, 4, 4)), nn.BatchNorm2d(4), nn.ReLU(),
            nn.ConvTranspose2d(4, 3, 4, 2, 1), nn.Tanh(),
        )  # fmt: skip
        self.critic = nn.Sequential(
            nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 8, 4, 2, 1)), nn.LeakyReLU(0.2),
            nn.Flatten(), nn.Linear(8 * 16, 1),
        )  # fmt: skip

    def forward(self, noise: Tensor, images: Tensor) -> dict[str, Tensor]:
        made = self.generator(noise)
        frozen = {name: each.detach() for name, each in self.critic.named_parameters()}
        return {
            "real": self.critic(images),
            "made": self.critic(made.detach()),
            "fools": torch.func.functional_call(self.critic, frozen, (made,)),
        }


def play(output: Any, batch: Any) -> dict[str, Tensor]:
    """Two losses; each reaches its own player only, so that their sum trains both."""
    critic = functional.softplus(-output["real"]) + functional.softplus(output["made"])
    return {"critic": critic.mean(), "generator": functional.softplus(-output["fools"]).mean()}


class Variational(nn.Module):
    """A VAE with the usual trick: noise times a learned deviation."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 8))
        self.decoder = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 16))

    def forward(self, x: Tensor) -> tuple[Tensor, torch.distributions.Normal]:
        mean, scale = self.encoder(x).chunk(2, -1)
        code = torch.distributions.Normal(mean, functional.softplus(scale))
        return self.decoder(code.rsample()), code


def bound(output: Any, batch: Any) -> Tensor:
    prior = torch.distributions.Normal(torch.zeros(()), torch.ones(()))
    rest = torch.distributions.kl_divergence(output[1], prior).sum(-1).mean()
    return functional.mse_loss(output[0], batch[0]) + 0.1 * rest


class Agent(nn.Module):
    """Actor and critic on one trunk, graded by the clipped objective of PPO."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.GRU(6, 16, batch_first=True)
        self.actor, self.critic = nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        seen, _ = self.trunk(states)
        return self.actor(seen), self.critic(seen).squeeze(-1)


def acted(batch_size: int) -> dict[str, Tensor]:
    return {
        "states": torch.randn(batch_size, 5, 6),
        "actions": torch.randint(0, 3, (batch_size, 5)),
        "before": torch.full((batch_size, 5), -1.1),
        "returns": torch.randn(batch_size, 5),
    }


def improve(output: Any, batch: Any) -> Any:
    policy: Any = torch.distributions.Categorical(logits=output[0])
    ratio = (policy.log_prob(batch["actions"]) - batch["before"]).exp()
    gain = batch["returns"] - output[1].detach()
    clipped = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
    return functional.mse_loss(output[1], batch["returns"]) - clipped - policy.entropy().mean()


class Points(nn.Module):
    """PointNet: a network for every point, the largest of each feature."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU())
        self.all = nn.Sequential(nn.Conv1d(16, 32, 1), nn.AdaptiveMaxPool1d(1), nn.Flatten())
        self.head = nn.Linear(32, 4)

    def forward(self, points: Tensor) -> Any:
        return self.head(self.all(self.each(points)))


def squared(output: Any, batch: Any) -> Any:
    return output.pow(2).mean()


class Experts(nn.Module):
    """Words are sorted by expert and multiplied in groups whose sizes the values tell."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(VOCABULARY, HIDDEN), nn.Linear(HIDDEN, VOCABULARY)
        self.router = nn.Linear(HIDDEN, 4)
        self.weight = nn.Parameter(torch.randn(4, HIDDEN, HIDDEN) * 0.1)

    def forward(self, source: Tensor, target: Tensor) -> Any:
        x = self.tokens(source)
        flat = x.flatten(0, 1)
        score, expert = self.router(flat).softmax(-1).max(-1)
        out = torch.zeros_like(flat)
        for index in range(4):
            rows = (expert == index).nonzero().squeeze(-1)
            out = out.index_add(0, rows, flat[rows] @ self.weight[index] * score[rows, None])
        return self.head(x + out.view_as(x))


@dataclasses.dataclass
class Sentence:
    """What a collating function might return."""

    source: Tensor
    lengths: Tensor


class Masked(nn.Module):
    """Takes a dataclass and a list of tensors; its middle is compiled and checkpointed."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(VOCABULARY, HIDDEN), nn.Linear(HIDDEN, VOCABULARY)
        self.middle = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.GELU())
        self.compiled = torch.compile(nn.Linear(HIDDEN, HIDDEN))

    def forward(self, sentence: Sentence, extras: list[Tensor]) -> Any:
        x = self.tokens(sentence.source) + sum(extras)
        seen = torch.arange(WORDS) < sentence.lengths[:, None]
        x = self.compiled(checkpoint(self.middle, x, use_reentrant=False)) * seen[..., None]
        return self.head(x)


def collated(batch_size: int) -> tuple[Sentence, list[Tensor]]:
    lengths = torch.arange(batch_size) % WORDS + 1
    extras = [torch.randn(batch_size, WORDS, HIDDEN) for _ in range(2)]
    return Sentence(words(batch_size), lengths), extras


def repeat_words(output: Any, batch: Any) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), batch[0].source.flatten())


def plain(module: type[nn.Module], inputs: Callable[[int], Any], loss: Any, **how: Any) -> Entry:
    return Entry("torch", lambda: (module(), inputs), loss=loss, **how)


BLOCKS = {"block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4}
LORA = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.1, "task_type": "CAUSAL_LM"}

OTHERS: dict[str, Entry] = {
    "AutoencoderKL": Entry("diffusers", diffuser(
        "AutoencoderKL", pictures, down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=2, **BLOCKS), loss=reconstruct),
    "DiT": Entry("diffusers", diffuser(
        "DiTTransformer2DModel", labelled_noise, num_attention_heads=2, attention_head_dim=8,
        in_channels=4, out_channels=4, num_layers=2, sample_size=8, norm_num_groups=4,
        num_embeds_ada_norm=10, patch_size=2), loss=remove_noise),
    "SD3": Entry("diffusers", diffuser(
        "SD3Transformer2DModel", guided_noise, sample_size=8, in_channels=4, out_channels=4,
        num_layers=2, attention_head_dim=8, num_attention_heads=2, joint_attention_dim=16,
        caption_projection_dim=16, pooled_projection_dim=16, pos_embed_max_size=8),
        loss=remove_noise),
    "UNet3D": Entry("diffusers", diffuser(
        "UNet3DConditionModel", film, sample_size=8, cross_attention_dim=16, attention_head_dim=4,
        down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"),
        up_block_types=("UpBlock3D", "CrossAttnUpBlock3D"), **BLOCKS), loss=remove_noise),
    "GIN": Entry("torch_geometric", graph_network("GIN"), loss=spread, batch="none"),
    "RGCN": Entry("torch_geometric", lambda: (Relations(), related), loss=spread, batch="none"),
    "graph transformer": Entry(
        "torch_geometric", lambda: (Attends(), weighted), loss=spread, batch="none"),
    "LoRA Llama": Entry("peft", adapted(
        "Llama.ForCausalLM", "LoraConfig", LORA | {"target_modules": "all-linear"}, **DECODER)),
    "DoRA Llama": Entry("peft", adapted(
        "Llama.ForCausalLM", "LoraConfig",
        LORA | {"use_dora": True, "target_modules": ["q_proj", "v_proj"]}, **DECODER)),
    "IA3 T5": Entry("peft", adapted(
        "T5.ForConditionalGeneration", "IA3Config", {"task_type": "SEQ_2_SEQ_LM"},
        vocab_size=VOCABULARY, d_model=HIDDEN, d_kv=8, d_ff=64, num_layers=1, num_heads=4,
        use_cache=False, decoder_start_token_id=0)),
    "GAN": plain(Adversaries, lambda b: (torch.randn(b, 8), torch.randn(b, 3, 8, 8)), play,
                 method="torch.export with opaque sub-modules"),
    "VAE": plain(Variational, lambda b: (torch.randn(b, 16),), bound),
    "PPO": plain(Agent, acted, improve),
    "PointNet": plain(Points, lambda b: (torch.randn(b, 3, 12),), squared),
    "sorted experts": plain(Experts, lambda b: {"source": words(b), "target": words(b)},
                            next_words),
    "compiled, checkpointed": plain(Masked, collated, repeat_words),
}  # fmt: skip
