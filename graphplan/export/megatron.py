"""Megatron-Core: layout, sizes and recomputation as arguments of its training scripts or as YAML.

The layout of `--pipeline-model-parallel-layout` has a word for every stage, in the order of the
model: `E` is the embedding, `t` a transformer layer, `L` the loss with all that is before it.
`Ettt|tttt|tttt|tttL` on two pipeline ranks makes two stages of each: stage s is on rank s mod 2.
Ranks are counted replicas first: pipeline rank p has the global ranks p dp to p dp + dp - 1.
"""

from __future__ import annotations

import json
import shlex

from graphplan.export.gate import LayerPlan, pass_gate, plan_layers
from graphplan.export.gate_stages import count_first
from graphplan.export.targets import TARGETS
from graphplan.nouns.base import Noun
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Plan
from graphplan.schedule.interleaved import measure_round

Value = bool | int | str

_OPTIMIZERS: dict[str, tuple[tuple[str, Value], ...]] = {
    "adam": (("optimizer", "adam"),),
    "adamw": (("optimizer", "adam"),),
    "momentum": (("optimizer", "sgd"),),
    "sgd": (("optimizer", "sgd"), ("sgd_momentum", "0.0")),
}


class MegatronWords(Noun, frozen=True, kw_only=True):
    """What Megatron is told, by section of its YAML, with names as in its configuration."""

    language_model: dict[str, Value]
    model_parallel: dict[str, Value]
    training: dict[str, Value]
    world_size: int
    notes: tuple[str, ...]
    """What Megatron does in its own way."""


def export_megatron(plan: Plan, graph: OpGraph) -> MegatronWords:
    """A plan in Megatron's words; refused when it has none for it."""
    pass_gate(plan, TARGETS["megatron"], graph)
    layers = plan_layers(plan, graph)
    language_model, notes = _say_recompute(layers)
    parallel: dict[str, Value] = {
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": layers.num_ranks,
        "pipeline_model_parallel_layout": say_layout(layers),
    }
    if len(layers.stages) > layers.num_ranks:
        parallel["microbatch_group_size_per_vp_stage"] = measure_round(plan.prices)
    if plan.training.mixed:
        parallel["bf16" if plan.training.precision == "bfloat16" else "fp16"] = True
    training: dict[str, Value] = {
        "micro_batch_size": layers.micro_batch_size,
        "global_batch_size": plan.training.batch_size,
        **dict(_OPTIMIZERS[plan.training.optimizer]),
    }
    if layers.zero:
        training["use_distributed_optimizer"] = True
    if not layers.tied:
        training["untie_embeddings_and_output_weights"] = True
    return MegatronWords(
        language_model={"num_layers": len(layers.listed.indices), **language_model},
        model_parallel=parallel,
        training=training,
        world_size=layers.num_ranks * layers.replicas,
        notes=notes,
    )


def say_layout(layers: LayerPlan) -> str:
    """`Ett|ttL`."""
    words = ["t" * len(stage.layers) for stage in layers.stages]
    words[0] = f"E{words[0]}"
    words[-1] = f"{words[-1]}L"
    return "|".join(words)


def _say_recompute(layers: LayerPlan) -> tuple[dict[str, Value], tuple[str, ...]]:
    """Megatron recomputes units of layers one by one (uniform), or the first n layers (block)."""
    most = count_first(layers.stages)
    assert most is not None, "the gate has refused it"
    if not most:
        return {}, ()
    held = [stage for stage in layers.stages if stage.layers]
    whole = all(stage.again_layers == stage.layers for stage in held)
    unit = most if whole and all(stage.again == "stage" for stage in held) else 1
    notes = ["embedding and head are not recomputed: Megatron recomputes layers only"]
    if not whole and any(stage.again == "stage" and len(stage.layers) > 1 for stage in held):
        notes.append("every layer is recomputed for itself, and its input kept")
    return {
        "recompute_granularity": "full",
        "recompute_method": "uniform" if whole else "block",
        "recompute_num_layers": unit if whole else most,
    }, tuple(notes)


_FLAGS = {
    "microbatch_group_size_per_vp_stage": "microbatch-group-size-per-virtual-pipeline-stage",
}


def render_arguments(words: MegatronWords) -> str:
    """A shell array: `source` it, and give "${MEGATRON_ARGS[@]}" to pretrain_gpt.py."""
    lines = [
        f"# For {words.world_size} ranks: torchrun --nproc-per-node ... pretrain_gpt.py"
        ' "${MEGATRON_ARGS[@]}" and the sizes of the model.',
        *(f"# Note: {note}." for note in words.notes),
        "MEGATRON_ARGS=(",
    ]
    for section in (words.language_model, words.model_parallel, words.training):
        for key, value in section.items():
            flag = f"--{_FLAGS.get(key, key).replace('_', '-')}"
            lines.append(
                f"  {flag}" if isinstance(value, bool) else f"  {flag} {shlex.quote(str(value))}"
            )
    return "\n".join((*lines, ")", ""))


def render_yaml(words: MegatronWords) -> str:
    """The sections of Megatron's `--yaml-cfg`, to be merged into the model's own file."""
    lines = [f"# For {words.world_size} ranks.", *(f"# Note: {note}." for note in words.notes)]
    for title, section in (
        ("language_model", words.language_model),
        ("model_parallel", words.model_parallel),
    ):
        lines += [f"{title}:", *(f"  {key}: {json.dumps(value)}" for key, value in section.items())]
    lines += [f"{key}: {json.dumps(value)}" for key, value in words.training.items()]
    return "\n".join((*lines, ""))
