"""torch.distributed.pipelining: a folder that torch's own runtime can run.

    plan.json      the plan
    model.py       the model file
    schedule.csv   the compute-only order, as `_PipelineScheduleRuntime` reads it (torch 2.13)
    run.py         builds the stages and runs them:  torchrun --nproc-per-node N run.py

torch's runtime knows chains only: every tensor goes from stage i to stage i + 1. A graph of stages
is therefore *linearised*: tensors for later stages pass through the ones between, and the order
becomes 1F1B on that chain. Branches no longer overlap; the exporter says what that costs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from graphplan.errors import InvalidOption
from graphplan.export import torch_launcher_path
from graphplan.files import write_bytes, write_noun
from graphplan.nouns.plan import Plan
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages, TransferPrice
from graphplan.nouns.schedule import Schedule
from graphplan.nouns.task import COMPUTE_KINDS, Task
from graphplan.schedule.lower import lower_schedule
from graphplan.schedule.onefoneb import build_1f1b
from graphplan.schedule.torchtext import format_torch_csv
from graphplan.simulate import predict_step


def export_torch(plan: Plan, model: str, settings: Mapping[str, Any], folder: Path) -> str:
    """Write the folder; returns a sentence on how the plan was treated and what it costs."""
    refuse_plan(plan)
    chain = is_chain(plan)
    priced = plan.prices if chain else linearise(plan.prices)
    schedule = plan_schedule(plan) if chain else build_1f1b(priced)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path, _, builder = model.partition(":")
        shutil.copyfile(path, folder / "model.py")
    except OSError as error:
        raise InvalidOption(
            f"Cannot fill {folder}: {error.strerror or error}.",
            remedy="Give a folder that can be written with -o, and the model file with --model.",
        ) from error
    write_noun(plan, folder / "plan.json")
    write_bytes(format_torch_csv(priced, schedule).encode(), folder / "schedule.csv")
    choices = {"builder": builder, "settings": dict(settings)}
    write_bytes(json.dumps(choices).encode(), folder / "settings.json")
    shutil.copyfile(torch_launcher_path(), folder / "run.py")
    ranks = len(plan.prices.memory_bytes_by_device)
    return (
        f"{_describe_cost(plan, priced, schedule, chain=chain)}\n"
        f"Run it with: torchrun --nproc-per-node {ranks} {folder}/run.py --steps 10"
    )


def refuse_plan(plan: Plan) -> None:
    """Refuse what torch's runtime has no words for."""
    stages = plan.prices.stages
    reason = None
    if plan.policy.name != "flush":
        reason = f"it has no weight policy {plan.policy.name!r}"
    elif any(len(stage.devices) > 1 for stage in stages):
        reason = "it does not know replicas of single stages"
    elif len({stage.micro_batch_size for stage in stages}) > 1:
        reason = "all stages must have the same micro-batch size"
    elif not all(stage.needs_backward for stage in stages):
        reason = "a stage that needs no backward cannot be expressed"
    elif not all(plan.prices.stages_by_device):
        reason = "every rank must have a stage"
    if reason is not None:
        raise InvalidOption(
            f"torch.distributed.pipelining cannot run this plan: {reason}.",
            remedy="Run it with `graphplan run`, or search with another --planner or --gpus.",
        )


def is_chain(plan: Plan) -> bool:
    """Whether every tensor goes to the next stage."""
    return all(dst == src + 1 for src, dst in plan.stages.edges_by_ends)


def plan_schedule(plan: Plan) -> Schedule:
    """The compute tasks of a plan's program."""
    program = plan.parse_program()
    return Schedule(
        name=plan.provenance.schedule,
        tasks_by_device=tuple(
            tuple(each for each in line if isinstance(each, Task) and each.kind in COMPUTE_KINDS)
            for line in program.instructions_by_device
        ),
    )


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
    )
    return TransferPrice(src=src, dst=dst, backward=transfer.backward, messages=messages)


def _describe_cost(plan: Plan, priced: PricedStages, schedule: Schedule, *, chain: bool) -> str:
    if chain:
        return f"Exported as a chain of {len(priced.stages)} stages, order unchanged."
    program = lower_schedule(priced, schedule, WeightPolicy())
    step_s = predict_step(priced, program).step_s
    return (
        f"Linearised: the graph of {len(priced.stages)} stages became a chain with pass-through,"
        f" because torch's runtime knows chains only. Predicted step {step_s * 1e3:.2f} ms instead"
        f" of {plan.prediction.step_s * 1e3:.2f} ms ({step_s / plan.prediction.step_s:.2f}x)."
    )
