"""Readers of exported plans, written from the documentation of the targets.

Each returns the same picture: for every rank, its stages in the order of the model, with the layers
of each and the layers that it recomputes; and what a micro-batch and a batch are. Nothing of
graphplan's writers is used here.

- Megatron-Core: `PipelineParallelLayerLayout` (a word for each stage, dealt to the pipeline ranks
  in turn), `--recompute-method` uniform and block, ranks in the order tp-cp-ep-dp-pp.
- torchtitan: `module_fqns_per_model_part`, looped over the pipeline ranks; mesh (pp, dp).
- DeepSpeed: `parts` of `PipelineModule._partition_layers`; `PipeDataParallelTopology` (pipe, data).
- torch.distributed.pipelining: a row of the CSV for each rank, stage numbers in its words.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

Held = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


class Picture(NamedTuple):
    """What a runtime was told."""

    held_by_rank: tuple[Held, ...]
    """By rank: (layers, recomputed layers) of each of its stages."""
    micro_batch: int
    """Samples of a micro-batch on one rank."""
    batch: int
    num_micro_batches: int


def read_megatron(text: str) -> Picture:
    """The arguments, as a shell would see them."""
    body = text[text.index("MEGATRON_ARGS=(") :].removeprefix("MEGATRON_ARGS=(")
    words = shlex.split(body[: body.rindex(")")])
    given: dict[str, str] = {}
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            given[word] = "" if following.startswith("--") else following
    ranks = int(given["--pipeline-model-parallel-size"])
    stages, start = [], 0
    for word in given["--pipeline-model-parallel-layout"].split("|"):
        assert re.fullmatch(r"E?t*L?", word)
        stages.append(tuple(range(start, start + word.count("t"))))
        start += word.count("t")
    assert start == int(given["--num-layers"])
    method = given.get("--recompute-method")
    count = int(given.get("--recompute-num-layers", 0))
    assert ("--recompute-granularity" in given) == (method is not None)
    again = [each if method == "uniform" else each[:count] for each in stages]
    match = re.search(r"For (\d+) ranks", text)
    assert match
    size, batch = int(given["--micro-batch-size"]), int(given["--global-batch-size"])
    width = int(match[1]) // ranks
    return _deal(stages, again, ranks, width, size, batch)


def _deal(
    stages: list[tuple[int, ...]],
    again: list[tuple[int, ...]],
    ranks: int,
    width: int,
    size: int,
    batch: int,
) -> Picture:
    """Stages dealt to pipeline ranks in turn, each of them `width` ranks of the job."""
    held = [tuple(zip(stages[p::ranks], again[p::ranks], strict=True)) for p in range(ranks)]
    assert batch % (size * width) == 0
    return Picture(
        tuple(each for each in held for _ in range(width)), size, batch, batch // (size * width)
    )


def read_torchtitan(folder: Path) -> Picture:
    """planned.json, and the order in schedule.csv, which must run just these stages."""
    said: dict[str, Any] = json.loads((folder / "planned.json").read_text())
    parallelism, training = said["parallelism"], said["training"]
    ranks = parallelism["pipeline_parallel_degree"]
    width = parallelism["data_parallel_replicate_degree"]
    width *= parallelism["data_parallel_shard_degree"]
    parts = parallelism["module_fqns_per_model_part"]
    assert parts[0][0] == "tok_embeddings" and parts[-1][-2:] == ["norm", "lm_head"]
    stages = [
        tuple(int(name.split(".")[1]) for name in part if name.startswith("layers."))
        for part in parts
    ]
    again = [each if said["recompute"] == "full" else () for each in stages]
    size = parallelism["pipeline_parallel_microbatch_size"]
    picture = _deal(stages, again, ranks, width, size, training["global_batch_size"])
    assert training["local_batch_size"] == size * picture.num_micro_batches
    counted = _read_rows((folder / "schedule.csv").read_text())
    assert [set(each) for each in counted] == [
        set(range(p, len(parts), ranks)) for p in range(ranks)
    ]
    assert {n for each in counted for n in each.values()} == {picture.num_micro_batches}
    return picture


def _read_rows(text: str) -> list[dict[int, int]]:
    """By rank: forwards of each of its stages."""
    counted: list[dict[int, int]] = []
    for row in csv.reader(io.StringIO(text)):
        counted.append({})
        for cell in row:
            match = re.fullmatch(r"(\d+)([FBIW])(\d+)", cell)
            assert match
            counted[-1].setdefault(int(match[1]), 0)
            counted[-1][int(match[1])] += match[2] == "F"
    return counted


def read_deepspeed(folder: Path) -> Picture:
    """planned.json and ds_config.json."""
    said: dict[str, Any] = json.loads((folder / "planned.json").read_text())
    config: dict[str, Any] = json.loads((folder / "ds_config.json").read_text())
    parts, last = said["parts"], len(said["entries"]) - 1
    assert parts[0] == 0 and parts[-1] == last + 1
    stages = [
        tuple(i - 1 for i in range(first, end) if 0 < i < last) for first, end in pairwise(parts)
    ]
    again = [each if on else () for each, on in zip(stages, said["recompute"], strict=True)]
    size = config["train_micro_batch_size_per_gpu"]
    picture = _deal(stages, again, len(stages), said["replicas"], size, config["train_batch_size"])
    assert config["gradient_accumulation_steps"] == picture.num_micro_batches
    return picture


def read_torch(folder: Path, layers_by_stage: list[tuple[int, ...]]) -> Picture:
    """The CSV says which stages a rank has; the plan in the folder is what the launcher cuts."""
    plan: dict[str, Any] = json.loads((folder / "plan.json").read_text())
    counted = _read_rows((folder / "schedule.csv").read_text())
    stages = plan["stages"]["stages"]
    held = tuple(
        tuple(
            (layers_by_stage[s], layers_by_stage[s] if stages[s].get("recompute") else ())
            for s in sorted(each)
        )
        for each in counted
    )
    (count,) = {n for each in counted for n in each.values()}
    return Picture(held, stages[0]["micro_batch_size"], plan["training"]["batch_size"], count)
