"""Whole training steps of a folder of measurements against estimates of captured models.

    python tools/validate_steps.py FOLDER [--write]

Every row of `steps.csv` (forward and backward of BERT, GPT-2, GPT-3 and OPT on one GPU, fp32, eager
attention) and of `megatron.csv` (BERT and GPT 7B, hidden >= 1,024, no tensor parallelism) is
printed with its prediction. Models are built by transformers on the meta device, captured by
graphplan, priced and, where devices share a step, cut and simulated. Captures are kept in
`build/steps`.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy

sys.path.insert(0, str(Path(__file__).parents[1]))

from graphplan.cost.estimate import count_launches, estimate_table, list_kernels
from graphplan.cost.flops import count_work
from graphplan.cost.hardware import find_cluster, find_device_type
from graphplan.cost.model import CostModel
from graphplan.cost.problem import make_problem
from graphplan.files import read_noun, write_noun
from graphplan.nouns.cluster import Cluster
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Prediction
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.training import Training
from graphplan.partition.assemble import Part, assemble_stages
from graphplan.planner.collect import schedule_prices
from tools.gpu_data import PROFILES, Row, read_rows

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "build" / "steps"
_LAYER = re.compile(r"\.(?:h|layers|layer)\.(\d+)")


def capture_model(name: str, build: Callable[[], Any], sequence: int) -> OpGraph:
    """The captured graph of a model, from the folder of captures where it is there."""
    path = KEPT / f"{name}.json"
    if not path.exists():
        import torch

        from graphplan.frontend import trace_module

        with torch.device("meta"):
            model = build().train()
            decoder = getattr(getattr(model, "model", None), "decoder", None)
            if decoder is not None:
                decoder.training = False  # OPT drops layers by the value of a random number.
            captured = trace_module(
                model, lambda b: {"input_ids": torch.zeros(b, sequence, dtype=torch.long)}
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_noun(captured.graph, path)
    return read_noun(path, OpGraph)


def build_neusight(row: Row) -> Any:
    """A model of `model_configs.csv`."""
    transformers: Any = importlib.import_module("transformers")
    layers, hidden, heads, ffn, words, length = (
        int(row[name])
        for name in ("layers", "hidden", "heads", "ffn", "vocabulary", "max_sequence")
    )
    eager = {"attn_implementation": "eager", "vocab_size": words}
    if row["architecture"] == "GPT2LMHeadModel":
        config = transformers.GPT2Config(
            n_layer=layers, n_embd=hidden, n_head=heads, n_inner=ffn, n_positions=length,
            use_cache=False, **eager,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(config)
    common = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
              "max_position_embeddings": length, **eager}  # fmt: skip
    if row["architecture"] == "BertLMHeadModel":
        return transformers.BertLMHeadModel(
            transformers.BertConfig(intermediate_size=ffn, **common)
        )
    config = transformers.OPTConfig(
        ffn_dim=ffn, word_embed_proj_dim=hidden, use_cache=False, **common
    )
    return transformers.OPTForCausalLM(config)


def list_step_lines(folder: Path) -> Iterator[str]:
    """Every step on one GPU, and those on four."""
    configs = {row["model"]: row for row in read_rows(folder / "model_configs.csv")}
    yield "| device | model | mode | batch | GPUs | measured s | predicted s | ratio | note |"
    yield "|---|---|---|---|---|---|---|---|---|"
    errors: dict[str, list[float]] = defaultdict(list)
    by_chip: dict[str, list[float]] = defaultdict(list)
    for row in read_rows(folder / "steps.csv"):
        config = configs.get(row["model"])
        if config is None or "Switch" in config["architecture"] or row["parallelism"] == "tp4":
            continue
        graph = capture_model(
            row["model"], functools.partial(build_neusight, config), int(row["sequence"])
        )
        alone = row["parallelism"] == "none"
        predicted = predict_alone(graph, row) if alone else predict_four(graph, row)
        ratio = predicted / float(row["step_s"])
        group = row["mode"] if alone else row["parallelism"]
        if not row["note"]:
            errors[group].append(abs(ratio - 1))
        yield (
            f"| {row['device']} | {row['model']} | {row['mode']} | {row['batch']} |"
            f" {row['parallelism']} | {float(row['step_s']):.4f} | {predicted:.4f} | {ratio:.3f} |"
            f" {row['note']} |"
        )
        if not row["note"]:
            by_chip[row["device"].split("-")[0].split()[0]].append(abs(ratio - 1))
    yield ""
    for chip, found in by_chip.items():
        CHIP_ERRORS[chip] = (len(found), float(numpy.mean(found)))
    for group, found in errors.items():
        yield f"- {group}: mean error {numpy.mean(found):.1%} over {len(found)} rows without a note"
    single = [e for group, found in errors.items() if group not in ("dp4", "pp4") for e in found]
    yield f"- all steps on one GPU: mean error {numpy.mean(single):.1%} over {len(single)} rows"


def predict_alone(graph: OpGraph, row: Row) -> float:
    """Seconds of a forward, or of a forward and a backward, on one GPU."""
    device = find_device_type(PROFILES[row["device"]])
    if row["mode"].endswith("compiled"):
        device = msgspec.structs.replace(device, host_s=0.0, fuses=True)
    table = estimate_table(graph, device, batch_sizes=[int(row["batch"])])
    trains = row["mode"] == "train"
    rows = [
        each
        for each, op in zip(table.rows, graph.ops, strict=True)
        if trains or op.kind != "dropout"
    ]
    forward = sum(each.forward_s[0] for each in rows)
    backward = sum(each.input_grad_s[0] + each.weight_grad_s[0] for each in rows)
    return forward + backward if trains else forward


def predict_four(graph: OpGraph, row: Row) -> float:
    """Seconds of a step on four GPUs of a node: all of one batch, or a stage each."""
    cluster = find_cluster("dgx-a100-40gb", gpus=4)
    training = Training(batch_size=int(row["batch"]))
    stages = 4 if row["parallelism"] == "pp4" else 1
    priced, prediction = simulate_cut(graph, cluster, training, stages, int(row["batch"]))
    return prediction.step_s - max(stage.update_s for stage in priced.stages)


def simulate_cut(
    graph: OpGraph,
    cluster: Cluster,
    training: Training,
    num_stages: int,
    micro_batch: int,
    *,
    schedule: str = "1f1b",
) -> tuple[PricedStages, Prediction]:
    """Equal runs of layers on equal shares of the devices, simulated."""
    groups = cut_layers(graph, num_stages)
    sizes = [1 << i for i in range(micro_batch.bit_length())]
    tables = {
        kind.name: estimate_table(graph, kind, batch_sizes=sizes, precision=training.precision)
        for kind in cluster.types
    }
    problem = make_problem(
        graph, tables, cluster, training, groups, micro_batch_sizes=[micro_batch]
    )
    each = len(cluster.devices) // num_stages
    parts = [
        Part(nodes=(i,), devices=tuple(range(i * each, (i + 1) * each)),
             micro_batch_size=micro_batch)
        for i in range(num_stages)
    ]  # fmt: skip
    priced = CostModel(problem).price_stages(assemble_stages(problem, parts))
    return priced, schedule_prices(priced, schedule=schedule).prediction


def cut_layers(graph: OpGraph, num_stages: int) -> list[tuple[str, ...]]:
    """Ops by stage, in their order: a stage ends where its last layer does."""
    numbers = [_LAYER.search(f".{op.module}") for op in graph.ops]
    count = 1 + max(int(found[1]) for found in numbers if found)
    groups: list[list[str]] = [[] for _ in range(num_stages)]
    current = 0
    for op, found in zip(graph.ops, numbers, strict=True):
        if found:
            current = max(current, int(found[1]) * num_stages // count)
        groups[current].append(op.name)
    return [tuple(group) for group in groups]


def build_megatron(row: Row) -> Any:
    """BERT, or a GPT with grouped queries and a plain MLP, as the row's test trains it."""
    transformers: Any = importlib.import_module("transformers")
    common = {"num_hidden_layers": int(row["layers"]), "hidden_size": int(row["hidden"]),
              "num_attention_heads": int(row["heads"]), "use_cache": False,
              "intermediate_size": int(row["ffn"] or 4 * int(row["hidden"]))}  # fmt: skip
    if row["family"] == "bert":
        return transformers.BertForPreTraining(
            transformers.BertConfig(
                attn_implementation="eager",
                vocab_size=int(row["vocabulary"] or 30592),
                max_position_embeddings=int(row["sequence"]),
                **common,
            )
        )
    config = transformers.Starcoder2Config(
        num_key_value_heads=int(row["kv_heads"]), vocab_size=131072 + 128, sliding_window=None,
        max_position_embeddings=int(row["sequence"]), tie_word_embeddings=False,
        residual_dropout=0.0, embedding_dropout=0.0, **common,
    )  # fmt: skip
    return transformers.Starcoder2ForCausalLM(config)


def mask_causally(graph: OpGraph) -> OpGraph:
    """The graph with a causal kernel where transformers passes a mask."""
    ops = [
        msgspec.structs.replace(
            op, call=re.sub(r"\(%0, %1, %2, %3.*", "(%0, %1, %2, is_causal=True)", op.call)
        )
        if op.kind == "scaled_dot_product_attention"
        else op
        for op in graph.ops
    ]
    return msgspec.structs.replace(graph, ops=tuple(ops))


def list_megatron_lines(folder: Path) -> Iterator[str]:
    """Steps and peak memory of Megatron-LM's own tests, with the host that they show."""
    yield "| test | device | stages x replicas | step s | predicted | ratio | peak GB | predicted |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in read_rows(folder / "megatron.csv"):
        large = row["hidden"] and int(row["hidden"]) >= 1024 and row["tp"] == "1"
        if not large or row["family"] not in ("bert", "gpt") or row["gpu"] not in MEGATRON:
            continue
        graph = mask_causally(
            capture_model(
                f"megatron-{row['family']}-{row['hidden']}",
                functools.partial(build_megatron, row),
                int(row["sequence"]),
            )
        )
        replicas, micro = int(row["dp"]), int(row["micro_batch"])
        training = Training(
            batch_size=int(row["global_batch"]), optimizer="adam", precision="bfloat16", mixed=True
        )
        plain = find_cluster(MEGATRON[row["gpu"]], gpus=int(row["gpus"]))
        cluster = slow_host(plain, graph, find_host_time(folder, row), int(row["layers"]))
        _, prediction = simulate_cut(graph, cluster, training, int(row["pp"]), micro * replicas)
        peak = max(prediction.peak_bytes_by_device) / 1e9
        taken, real = float(row["step_s"]), float(row["peak_allocated_bytes"]) / 1e9
        yield (
            f"| {row['test']} {row['environment']} | {row['gpu']} | {row['pp']} x {replicas} |"
            f" {taken:.3f} | {prediction.step_s:.3f} | {prediction.step_s / taken:.2f} |"
            f" {real:.1f} | {peak:.1f} |"
        )


def find_host_time(folder: Path, row: Row) -> float:
    """What these tests' host takes for a layer and a micro-batch: the median of models so small
    (hidden 512) that nothing else counts, on the same device and software."""
    found = [
        float(each["step_s"]) * int(each["pp"]) / int(each["layers"])
        / (int(each["global_batch"]) / int(each["micro_batch"]) / int(each["dp"])
           + int(each["pp"]) - 1)
        for each in read_rows(folder / "megatron.csv")
        if each["hidden"] == "512" and each["tp"] == "1" and each["dp"] and each["layers"]
        and each["gpu"] == row["gpu"] and each["environment"] == row["environment"]
        and not each["experts"] and not each["recompute"] and each["cp"] in ("", "1")
    ]  # fmt: skip
    return float(numpy.median(found)) if found else 0.0


def slow_host(cluster: Cluster, graph: OpGraph, layer_s: float, num_layers: int) -> Cluster:
    """The cluster whose host takes so long for a layer, forward and backward."""
    works = count_work(graph, 1).values()
    launches = sum(count_launches(list_kernels(work)) for work in works) / num_layers
    types = [msgspec.structs.replace(each, host_s=layer_s / launches) for each in cluster.types]
    return msgspec.structs.replace(cluster, types=tuple(types))


CHIP_ERRORS: dict[str, tuple[int, float]] = {}
"""Rows and mean error by chip, as `list_step_lines` finds them."""
CHIPS = {
    "A100": ("a100-40gb", "a100-80gb", "a100-40gb-pcie", "a100-80gb-pcie"),
    "V100": ("v100-16gb", "v100-32gb", "v100-32gb-pcie"), "L4": ("l4",), "T4": ("t4",),
}  # fmt: skip


def format_chips() -> str:
    """What reports say beside a predicted step, as profiles/laws/steps.toml."""
    parts = ["# Mean errors of whole steps, by tools/validate_steps.py.\n"]
    for chip, (count, error) in CHIP_ERRORS.items():
        names = ", ".join(f'"{name}"' for name in CHIPS[chip])
        parts.append(
            f'[[steps]]\nchip = "{chip}"\ndevices = [{names}]\nprecision = "float32"\n'
            f"count = {count}\nerror = {error:.3f}\n"
        )
    return "\n".join(parts)


MEGATRON = {"A100": "dgx-a100", "GB200": "dgx-b200"}
"""Clusters of ours for the machines of the tests."""


def main() -> None:
    """Print all rows; write them where asked."""
    folder = Path(sys.argv[1])
    lines = [*HEAD.splitlines(), "", *list_step_lines(folder), ""]
    lines += ["## Megatron-LM", "", *list_megatron_lines(folder), ""]
    print("\n".join(lines))
    if "--write" in sys.argv:
        (ROOT / "docs" / "results" / "gpu_steps.md").write_text("\n".join(lines))
        (ROOT / "profiles" / "laws" / "steps.toml").write_text(format_chips())


HEAD = """\
# Whole steps on GPUs against measurements

2026-11-18, 2 cores of a shared x86-64 server, no GPU:
`python tools/validate_steps.py FOLDER --write`, on measurements of others (NeuSight; Megatron-LM).
Rows with a note disagree with the sum of their own nodes and count in no mean. tp4 and Switch
models are left out.

What was not blind: how much of a stream comes from the cache was set after looking at steps on L4.
Most rows are forwards alone (inference); the expected errors that reports print count them, too."""


if __name__ == "__main__":
    main()
