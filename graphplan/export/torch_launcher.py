"""Run an exported plan with torch.distributed.pipelining:

    torchrun --nproc-per-node N run.py --steps 10 [--check]

Written by `graphplan export --to torch`. The stages are cut from the model by graphplan; schedule
and transfers are torch's (private API of torch 2.13: `_PipelineScheduleRuntime`, `_load_csv`).
`--check` compares losses and gradients of the first step with the whole model in one process.
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

from graphplan.files import read_noun
from graphplan.frontend import (
    Captured,
    StageModule,
    cut_graph,
    load_model_file,
    load_weights,
    shared_weights,
    trace_model_file,
)
from graphplan.nouns.plan import Plan

HERE = Path(__file__).resolve().parent


class Carrier(nn.Module):
    """A stage that takes what the previous one sends and sends on what later ones need."""

    def __init__(self, stage: StageModule, taken: Sequence[str], sent: Sequence[str]) -> None:
        super().__init__()
        self.stage, self.taken, self.sent = stage, tuple(taken), tuple(sent)

    def forward(self, *carried: torch.Tensor, **fed: torch.Tensor) -> Any:
        values = dict(zip(self.taken, map(tidy_gradient, carried), strict=True)) | fed
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
    """The model inputs that a stage reads itself."""
    return {each.name: batch[each.name] for each in stage.inputs if each.source is None}


def main() -> None:
    """One rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    plan = read_noun(HERE / "plan.json", Plan)
    choices = json.loads((HERE / "settings.json").read_text())
    spec = str(HERE / "model.py") + (f":{choices['builder']}" if choices["builder"] else "")
    file = load_model_file(spec, settings=choices["settings"])
    captured = trace_model_file(file)
    assert captured.graph.fingerprint == plan.model.fingerprint, "model.py is not the plan's model"
    torch.manual_seed(0)
    model = file.build()
    stages = cut_graph(
        captured, {op: s for s, stage in enumerate(plan.stages.stages) for op in stage.ops}
    )
    tied = shared_weights(stages)
    assert not tied, f"stages share the weights {sorted(tied)}: run this plan with `graphplan run`"
    rank = int(os.environ["RANK"])
    device = torch.device(f"cuda:{rank}" if torch.cuda.is_available() else "cpu")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    state = dict(model.state_dict())
    mine = [s for s, stage in enumerate(plan.stages.stages) if rank in stage.devices]
    sent = carry_values(stages)
    pipes = []
    for s in mine:
        load_weights(stages[s], state)
        carrier = Carrier(stages[s].to(device), sent[s - 1] if s else [], sent[s])
        pipes.append(PipelineStage(carrier, s, len(stages), device))
    size = plan.stages.stages[0].micro_batch_size
    schedule = _PipelineScheduleRuntime(  # type: ignore[no-untyped-call]
        pipes,
        plan.training.batch_size // size,
        loss_fn=lambda output, _: output.sum(),
        scale_grads=True,
    )
    schedule._load_csv(str(HERE / "schedule.csv"))
    parameters = [p for s in mine for p in stages[s].parameters() if p.requires_grad]
    optimizer = file.optimizer(parameters) if file.optimizer else torch.optim.SGD(parameters, 1e-3)
    for step in range(options.steps):
        torch.manual_seed(step + 1)
        batch = captured.flatten_batch(file.inputs(plan.training.batch_size))
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        losses: list[torch.Tensor] = []
        fed: dict[str, torch.Tensor] = {}
        for s in mine:
            fed |= feed_stage(stages[s], batch)
        target = torch.zeros(plan.training.batch_size, device=device)
        kwargs: dict[str, Any] = {**fed, "target": target, "losses": losses}
        schedule.step(**kwargs, return_outputs=False)
        if losses:
            say({"step": step, "loss": float(torch.stack(losses).detach().mean())})
        if options.check and step == 0:
            check_step(captured, state, batch, [stages[s] for s in mine])
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


def check_step(
    captured: Captured,
    state: dict[str, torch.Tensor],
    batch: dict[str, torch.Tensor],
    stages: Sequence[StageModule],
) -> None:
    """Print the largest difference of a gradient of this rank to the whole model's."""
    whole = cut_graph(captured, dict.fromkeys(captured.graph.op_by_name, 0))[0]
    load_weights(whole, {name: tensor.detach().clone() for name, tensor in state.items()})
    whole.to(next(iter(batch.values())).device)
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
