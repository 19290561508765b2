"""Run an exported plan with torch.distributed.pipelining:

    torchrun --nproc-per-node N run.py --steps 10 [--check]

Written by `graphplan export --to torch`. The stages are cut from the model by graphplan; schedule
and transfers are torch's (private API of torch 2.13: `_PipelineScheduleRuntime`, `_load_csv`).
`--check` compares losses and gradients of the first step with the whole model in one process.
Weights that several stages share are one tensor on a rank; between ranks their gradients are added.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.utils.checkpoint import checkpoint

from graphplan.files import read_noun
from graphplan.frontend import (
    Captured,
    ModelFile,
    StageModule,
    cut_graph,
    load_model_file,
    load_weights,
    shared_weights,
    trace_model_file,
)
from graphplan.nouns.plan import Plan

HERE = Path(__file__).resolve().parent
FED = "fed_"
"""Begins the keywords of model inputs: torch's `step` has words of its own, such as `target`."""


class Carrier(nn.Module):
    """A stage that takes what the previous one sends and sends on what later ones need."""

    def __init__(
        self, stage: StageModule, taken: Sequence[str], sent: Sequence[str], *, recompute: bool
    ) -> None:
        super().__init__()
        self.stage, self.taken, self.sent = stage, tuple(taken), tuple(sent)
        self.recompute = recompute

    def forward(self, *carried: torch.Tensor, **fed: torch.Tensor) -> Any:
        values = dict(zip(self.taken, map(tidy_gradient, carried), strict=True))
        values |= {name.removeprefix(FED): tensor for name, tensor in fed.items()}
        if self.recompute:
            values |= checkpoint(self.stage.run_values, values, use_reentrant=False)
        else:
            values |= self.stage.run_values(values)
        if self.stage.loss is not None:
            return values[self.stage.loss].reshape(1)
        return tuple(values[name].contiguous() for name in self.sent)


def say(record: dict[str, object]) -> None:
    """Print a record in one write: ranks share the output, and lines must not run together."""
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


def tidy_gradient(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor, whose gradient will be contiguous: torch sends no other ones."""
    if not tensor.requires_grad:
        return tensor
    view = tensor.view_as(tensor)
    view.register_hook(lambda gradient: gradient.contiguous())  # type: ignore[no-untyped-call]
    return view


def carry_values(stages: Sequence[StageModule]) -> list[list[str]]:
    """By stage, the values that leave it: those that any later stage reads."""
    made_by = {name: stage.index for stage in stages for name in stage.outputs}
    sent: list[list[str]] = [[] for _ in stages]
    for stage in stages:
        for given in stage.inputs:
            for s in range(made_by.get(given.name, stage.index), stage.index):
                if given.name not in sent[s]:
                    sent[s].append(given.name)
    return sent


def feed_stage(stage: StageModule, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The model inputs that a stage reads itself, by keyword."""
    return {FED + each.name: batch[each.name] for each in stage.inputs if each.source is None}


def main() -> None:
    """One rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    plan, file, captured = read_export()
    torch.manual_seed(0)
    built = file.build()  # Buffers that are not saved, such as rotary tables, are needed, too.
    state = {**dict(built.named_buffers()), **built.state_dict()}
    rank, device = join_ranks()
    stages = cut_stages(plan, captured, device)
    mine = [s for s, stage in enumerate(plan.stages.stages) if rank in stage.devices]
    for s in mine:
        load_weights(stages[s], state)
        stages[s].to(device)
    own = [stages[s] for s in mine]
    ties = join_ties(plan, stages, mine)
    schedule = make_schedule(plan, stages, mine, device)
    optimizers = make_optimizers(file, own)
    for step in range(options.steps):
        torch.manual_seed(step + 1)
        batch = captured.flatten_batch(file.inputs(plan.training.batch_size))
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        losses = run_step(schedule, own, batch, plan.training.batch_size)
        finish_gradients(own, ties, count_micro_batches(plan))
        if losses:
            say({"step": step, "loss": float(torch.stack(losses).detach().mean())})
        if options.check and step == 0:
            check_step(captured, state, batch, own)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()


def read_export() -> tuple[Plan, ModelFile, Captured]:
    """The plan of this folder, and the model beside it, which must be the plan's."""
    plan = read_noun(HERE / "plan.json", Plan)
    choices = json.loads((HERE / "settings.json").read_text())
    spec = str(HERE / "model.py") + (f":{choices['builder']}" if choices["builder"] else "")
    file = load_model_file(spec, settings=choices["settings"])
    captured = trace_model_file(file)
    if captured.graph.fingerprint != plan.model.fingerprint:
        sys.exit("model.py is not the plan's model: export the plan again with --model.")
    return plan, file, captured


def cut_stages(plan: Plan, captured: Captured, device: torch.device) -> tuple[StageModule, ...]:
    """The stage modules for a device."""
    stage_by_op = {op: s for s, stage in enumerate(plan.stages.stages) for op in stage.ops}
    return cut_graph(captured, stage_by_op, device=device)


def join_ties(
    plan: Plan, stages: Sequence[StageModule], mine: Sequence[int]
) -> list[tuple[nn.Parameter, dist.ProcessGroup]]:
    """The trained weights of this rank that other ranks hold, too, with the group of them.

    Stages of this rank that share a weight get one parameter; it would be updated twice otherwise.
    """
    trained = {weight.name for stage in stages for weight in stage.weights if weight.trainable}
    ties = []
    for name, held in sorted(shared_weights(stages).items()):
        if name not in trained:
            continue
        ranks = sorted({plan.stages.stages[s].devices[0] for s in held})
        group = dist.new_group(ranks) if len(ranks) > 1 else None  # all ranks make all groups
        own = [stages[s] for s in held if s in mine]
        path, _, key = name.rpartition(".")
        for stage in own[1:]:
            stage.get_submodule(path).register_parameter(key, own[0].get_parameter(name))
        if own and group is not None:
            assert isinstance(group, dist.ProcessGroup)
            ties.append((own[0].get_parameter(name), group))
    return ties


def finish_gradients(
    own: Sequence[StageModule],
    ties: Sequence[tuple[nn.Parameter, dist.ProcessGroup]],
    num_micro_batches: int,
) -> None:
    """Means over the micro-batches in place of sums, and sums over the uses of a tied weight."""
    for parameter in dict.fromkeys(p for stage in own for p in stage.parameters()):
        if parameter.grad is not None:
            parameter.grad /= num_micro_batches
    for parameter, group in ties:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad, group=group)


def count_micro_batches(plan: Plan) -> int:
    """Micro-batches of a batch."""
    return plan.training.batch_size // plan.stages.stages[0].micro_batch_size


def join_ranks() -> tuple[int, torch.device]:
    """This process's rank in the plan, and its device on this node."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return dist.get_rank(), device


def make_schedule(
    plan: Plan, stages: Sequence[StageModule], mine: Sequence[int], device: torch.device
) -> _PipelineScheduleRuntime:
    """torch's runtime with the exported schedule."""
    sent = carry_values(stages)
    pipes = [
        PipelineStage(
            Carrier(
                stages[s],
                sent[s - 1] if s else [],
                sent[s],
                recompute=bool(plan.stages.stages[s].recompute),
            ),
            s,
            len(stages),
            device,
        )
        for s in mine
    ]
    schedule = _PipelineScheduleRuntime(  # type: ignore[no-untyped-call]
        pipes,
        count_micro_batches(plan),
        loss_fn=lambda output, _: output.sum(),
        scale_grads=False,  # torch would scale a weight of two stages twice
    )
    schedule._load_csv(str(HERE / "schedule.csv"))
    return schedule


def make_optimizers(file: ModelFile, own: Sequence[StageModule]) -> list[torch.optim.Optimizer]:
    """One for the weights of this rank; none where its stages have no weights."""
    parameters = [
        p for p in dict.fromkeys(p for stage in own for p in stage.parameters()) if p.requires_grad
    ]
    if not parameters:
        return []
    return [file.optimizer(parameters) if file.optimizer else torch.optim.SGD(parameters, 1e-3)]


def run_step(
    schedule: _PipelineScheduleRuntime,
    own: Sequence[StageModule],
    batch: dict[str, torch.Tensor],
    batch_size: int,
) -> list[torch.Tensor]:
    """Forwards and backwards of a batch; its losses where the last stage is."""
    losses: list[torch.Tensor] = []
    device = next(iter(batch.values())).device
    kwargs: dict[str, Any] = {
        "target": torch.zeros(batch_size, device=device),  # torch wants one to call the loss.
        "losses": losses,
    }
    for stage in own:
        kwargs |= feed_stage(stage, batch)
    schedule.step(**kwargs, return_outputs=False)
    return losses


def check_step(
    captured: Captured,
    state: dict[str, torch.Tensor],
    batch: dict[str, torch.Tensor],
    stages: Sequence[StageModule],
) -> None:
    """Print the largest difference of a gradient of this rank to the whole model's."""
    device = next(iter(batch.values())).device
    whole = cut_graph(captured, dict.fromkeys(captured.graph.op_by_name, 0), device=device)[0]
    load_weights(whole, {name: tensor.detach().clone() for name, tensor in state.items()})
    whole.to(device)
    assert whole.loss is not None
    torch.autograd.backward(whole.run_values(batch)[whole.loss])
    expected = dict(whole.named_parameters())
    worst = 0.0
    for stage in stages:
        for name, parameter in stage.named_parameters():
            if parameter.grad is not None:
                grad = expected[name].grad
                assert grad is not None
                worst = max(worst, float((parameter.grad - grad).abs().max()))
    say({"rank": dist.get_rank(), "largest_gradient_difference": worst})


if __name__ == "__main__":
    main()
