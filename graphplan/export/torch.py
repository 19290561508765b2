"""torch.distributed.pipelining: a folder that torch's own runtime can run.

    plan.json      the plan
    model.py       the model file
    schedule.csv   the compute-only order, as `_PipelineScheduleRuntime` reads it (torch 2.13)
    run.py         builds the stages and runs them:  torchrun --nproc-per-node N run.py

torch's runtime knows chains only: every tensor goes from stage i to stage i + 1. Tensors for later
stages pass through the ones between. Where every stage feeds the next one anyway, the plan's order
holds; a graph of stages is *linearised*, and the order becomes 1F1B on that chain. Branches no
longer overlap then; the exporter says what that costs.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from graphplan.errors import InvalidOption
from graphplan.export.folder import fill_folder
from graphplan.export.gate import pass_gate
from graphplan.export.order import read_order
from graphplan.export.targets import TARGETS
from graphplan.files import encode_noun
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Plan
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages, TransferPrice
from graphplan.nouns.schedule import Schedule
from graphplan.nouns.stages import StageGraph
from graphplan.schedule.interleaved import build_interleaved
from graphplan.schedule.lower import lower_schedule
from graphplan.schedule.onefoneb import build_1f1b
from graphplan.schedule.torchtext import format_torch_csv
from graphplan.simulate import predict_step


def export_torch(
    plan: Plan, graph: OpGraph, model: str, settings: Mapping[str, Any], folder: Path
) -> str:
    """Write the folder; returns a sentence on how the plan was treated and what it costs."""
    pass_gate(plan, TARGETS["torch"], graph)
    if not model.partition(":")[0].endswith(".py"):
        raise InvalidOption(
            f"{model} has no code that the exported folder could run.",
            remedy="Give the model file, --model model.py.",
        )
    path = is_path(plan.stages)
    priced = plan.prices if path else linearise(plan.prices)
    schedule = read_order(plan) if path else _order_chain(priced)
    file, _, builder = model.partition(":")
    choices = {"builder": builder, "settings": dict(settings)}
    fill_folder(
        folder,
        {
            "plan.json": encode_noun(plan),
            "schedule.csv": format_torch_csv(schedule),
            "settings.json": json.dumps(choices),
        },
        copies={"model.py": Path(file), "run.py": "torch_launcher.py"},
    )
    ranks, launcher = len(plan.prices.memory_bytes_by_device), shlex.quote(str(folder / "run.py"))
    return (
        f"{_describe_cost(plan, priced, schedule, path=path)}\n"
        f"Run it with: torchrun --nproc-per-node {ranks} {launcher} --steps 10"
    )


def is_path(stages: StageGraph) -> bool:
    """Whether every stage feeds the next one, so that no two could run side by side."""
    return all((s, s + 1) in stages.edges_by_ends for s in range(len(stages.stages) - 1))


def _order_chain(priced: PricedStages) -> Schedule:
    """1F1B, in turns where a device has several stages."""
    turns = any(len(hosted) > 1 for hosted in priced.stages_by_device)
    return build_interleaved(priced) if turns else build_1f1b(priced)


def linearise(priced: PricedStages) -> PricedStages:
    """The same stages as a chain: a tensor for a later stage is sent on by all between."""
    forward: dict[int, list[TransferPrice]] = {}
    for transfer in priced.transfers:
        low, high = sorted((transfer.src, transfer.dst))
        for s in range(low, high):
            ends = (s + 1, s) if transfer.backward else (s, s + 1)
            moved = _move_transfer(priced, transfer, *ends)
            forward.setdefault(ends[0] * len(priced.stages) + ends[1], []).append(moved)
    edges = tuple((s, s + 1) for s in range(len(priced.stages) - 1))
    return msgspec.structs.replace(
        priced,
        edges=edges,
        backward_edges=edges,
        transfers=tuple(
            msgspec.structs.replace(
                each[0], messages=tuple(message for t in each for message in t.messages)
            )
            for each in forward.values()
        ),
    )


def _move_transfer(
    priced: PricedStages, transfer: TransferPrice, src: int, dst: int
) -> TransferPrice:
    """The bytes of a transfer on the way between two neighbours, at the same link speed."""
    (a,), (b,) = priced.stages[src].devices, priced.stages[dst].devices
    messages = tuple(
        msgspec.structs.replace(message, src=a, dst=b, channel=f"d{a}>d{b}")
        for message in transfer.messages
        if a != b
    )
    return TransferPrice(src=src, dst=dst, backward=transfer.backward, messages=messages)


def _describe_cost(plan: Plan, priced: PricedStages, schedule: Schedule, *, path: bool) -> str:
    if path:
        return f"Exported as a chain of {len(priced.stages)} stages, order unchanged."
    program = lower_schedule(priced, schedule, WeightPolicy())
    step_s = predict_step(priced, program).step_s
    return (
        f"Linearised: the graph of {len(priced.stages)} stages became a chain with pass-through,"
        f" because torch's runtime knows chains only. Predicted step {step_s * 1e3:.2f} ms instead"
        f" of {plan.prediction.step_s * 1e3:.2f} ms ({step_s / plan.prediction.step_s:.2f}x)."
    )
