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
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy

sys.path.insert(0, str(Path(__file__).parents[1]))

from graphplan.cost.estimate import estimate_table
from graphplan.cost.hardware import find_cluster, find_device_type
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.training import Training
from tools.captured_steps import capture_model, simulate_cut
from tools.gpu_data import PROFILES, Row, read_rows
from tools.megatron_steps import list_megatron_lines

ROOT = Path(__file__).parents[1]


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


def list_inputs(batch_size: int, *, sequence: int) -> dict[str, Any]:
    """Tokens of a batch."""
    import torch

    return {"input_ids": torch.zeros(batch_size, sequence, dtype=torch.long)}


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
            row["model"],
            functools.partial(build_neusight, config),
            functools.partial(list_inputs, sequence=int(row["sequence"])),
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

What was not blind: how much of a stream comes from the cache was set after looking at steps on L4;
that products on L4 are faster in steps than in sweeps was fitted to nodes of BERT and OPT alone,
so that its GPT-2 and GPT-3 rows judge that.
Most rows are forwards alone (inference); the expected errors that reports print count them, too."""


if __name__ == "__main__":
    main()
