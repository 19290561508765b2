"""The reference: the same steps in one process, with the user's own module, for comparison.

On whole batches by default: a loss that is a mean over samples gives the same gradients whether a
batch is split or not. A loss that compares the samples of a batch with each other (contrastive
losses, batch norm) depends on how the batch is split; `micro-batch` splits as the plan does.
Dropout and other random ops draw what the tasks of the plan drew (draws.py), and the precision is
that of the plan, so that what is left of a difference is rounding, or has a reason that is told.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from graphplan.frontend import Captured, ModelFile
from graphplan.frontend.example import Arguments, make_example, split_arguments
from graphplan.frontend.withloss import WithLoss
from graphplan.nouns.plan import Plan
from graphplan_runtime.batches import Batches
from graphplan_runtime.checkpoints.checkpoint import read_checkpoint, read_manifest
from graphplan_runtime.drawcall import Draw
from graphplan_runtime.draws import DrawnAgain, list_draws
from graphplan_runtime.messages.parcels import Split, split_batch
from graphplan_runtime.messages.wiretypes import cast_dtype, find_autocast
from graphplan_runtime.options import RunOptions
from graphplan_runtime.pipeline import Pipeline
from graphplan_runtime.report import WholeReport
from graphplan_runtime.stages.initialize import list_weights
from graphplan_runtime.stages.variants import count_samples, find_axes
from graphplan_runtime.train import choose_optimizer

FAR = 1e-3


def compare_reference(
    report: WholeReport, pipeline: Pipeline, model_file: ModelFile, options: RunOptions
) -> None:
    """Train in one process on rank 0 and add the differences to the report."""
    with tempfile.TemporaryDirectory(prefix="graphplan-reference-") as name:
        folder = Path(name) if pipeline.rank == 0 else None
        with pipeline.status.waiting():
            shared = pipeline.transport.spread_text(str(folder or ""), source=0)
        saved = pipeline.save(shared)
        if pipeline.rank == 0:
            reference = Reference(pipeline, model_file, options)
            losses = reference.train()
            found = compare_runs(report.facts["losses"], losses, reference.weights(), saved)
            hint = explain_gap(found["largest_loss_difference"], reference.list_reasons())
            report.facts["reference"] = {"on": options.reference, **found, **hint}
        with pipeline.status.waiting():
            pipeline.transport.meet()


class Reference:
    """The user's module, trained on the batches of a run as the plan trains it."""

    def __init__(self, pipeline: Pipeline, model_file: ModelFile, options: RunOptions) -> None:
        self.pipeline = pipeline
        self.model_file = model_file
        self.options = options
        self.plan: Plan = pipeline.plan
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(options.seed)
            self.module = model_file.build()
        self.module._apply(  # type: ignore[no-untyped-call]
            lambda tensor: tensor.to(cast_dtype(tensor.dtype, self.plan.training))
        )
        self.whole = self.module
        if model_file.loss is not None:
            self.whole = WithLoss(self.module, model_file.loss, make_example(model_file.inputs))
        self.misses: dict[str, str] = {}
        """By op that draws other numbers than the tasks of the plan, why."""
        self._draws: dict[int, tuple[Draw, ...]] = {}
        """By captured graph: batches of other shapes have others."""

    def train(self) -> list[float]:
        """The losses of the run's steps."""
        batch_size = self.options.batch_size or self.plan.training.batch_size
        batches = Batches(self.model_file, batch_size=batch_size, seed=self.options.seed)
        return self.train_on(batches.take() for _ in range(self.options.steps))

    def train_on(self, batches: Iterable[Any]) -> list[float]:
        """The losses of steps on these batches."""
        options = self.options
        trained = [p for p in self.module.parameters() if p.requires_grad]
        optimizer = choose_optimizer(self.plan, options, self.model_file)(trained)
        losses = []
        for step, batch in enumerate(batches):
            losses.append(self._add_gradients(batch, step))
            if options.clip_norm is not None:
                nn.utils.clip_grad_norm_(trained, options.clip_norm)
            optimizer.step()
            optimizer.zero_grad()
        return losses

    def weights(self) -> dict[str, torch.Tensor]:
        """Those of the module as they are now."""
        return list_weights(self.module)

    def _add_gradients(self, batch: Any, step: int) -> float:
        """The loss of a batch; gradients are added to those of the parameters."""
        variant, tensors = self.pipeline.variants.find(batch)
        captured, loss = variant.captured, 0.0
        split = split_batch(self.plan, captured.graph, count_samples(captured.graph, tensors))
        for rows in split_parts(self.pipeline, split, on=str(self.options.reference)):
            part = self._cut_rows(Arguments(*split_arguments(batch)), captured, rows)
            with self._drawing(captured, split, rows, step):
                loss += self._accumulate(part, len(rows) / split.num_rows)
        return loss

    @contextlib.contextmanager
    def _drawing(self, captured: Captured, split: Split, rows: range, step: int) -> Iterator[None]:
        """Random ops draw what the tasks drew."""
        key = id(captured)
        if key not in self._draws:
            self._draws[key] = list_draws(captured, self.plan.stages)
        draws = self._draws[key]
        with contextlib.ExitStack() as stack:
            if draws:
                seed = self.options.seed
                again = stack.enter_context(DrawnAgain(draws, split, rows, seed=seed, step=step))
            yield
            if draws:
                again.check_end()
                self.misses |= again.misses

    def _accumulate(self, part: Arguments, share: float) -> float:
        dtype = find_autocast(self.plan.training)
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            result: Any = self.whole(*part.args, **part.kwargs)
        loss = result["loss"] if not isinstance(result, torch.Tensor) else result
        torch.autograd.backward(loss * share)
        return float(loss.detach()) * share

    def _cut_rows(self, arguments: Arguments, captured: Captured, rows: range) -> Arguments:
        """Some samples of a batch, in the precision of the plan."""
        names = [given.name for given in captured.graph.inputs]
        axes = find_axes(captured.graph, dict(zip(names, arguments.tensors, strict=True)))
        tensors = []
        for axis, tensor in zip(axes.values(), arguments.tensors, strict=True):
            if axis is not None:
                tensor = tensor.narrow(axis.dim, rows.start * axis.scale, len(rows) * axis.scale)
            tensors.append(tensor.to(cast_dtype(tensor.dtype, self.plan.training)))
        return arguments.with_tensors(tensors)

    def list_reasons(self) -> list[str]:
        """Why this run cannot be equal to the reference, as far as is known."""
        policy, found = self.plan.policy, []
        if policy.name == "local":
            found.append(
                f"Policy local averages the replicas every {policy.local_steps} updates, the"
                " reference updates one set of weights: the losses are expected to differ."
            )
        elif not policy.is_synchronous:
            found.append(
                f"Policy {policy.name} updates with a delay of up to {policy.most_stale}, the"
                " reference without one: the losses are expected to differ."
            )
        if self.options.init == "stage":
            found.append("--init stage draws other first weights than build(): use --init exact.")
        if self.pipeline.device.type != "cpu":
            found.append(f"The reference runs on the CPU, the plan on {self.pipeline.device.type}.")
        found += self._list_mixing()
        found += [f"Op {op} draws other numbers: {why}." for op, why in self.misses.items()]
        return found

    def _list_mixing(self) -> list[str]:
        """Ops that mix samples see other samples in whole batches than in the plan's tasks."""
        if self.options.reference != "batch":
            return []
        whole = self.plan.training.batch_size
        seen = {
            op: stage.micro_batch_size // len(stage.devices)
            for stage in self.plan.stages.stages
            for op in stage.ops
        }
        mixing = self.pipeline.captured.graph.mixing
        ops = [each.op for each in mixing if seen.get(each.op, 0) < whole]
        if not ops:
            return []
        more = f" and {len(ops) - 1} more" if len(ops) > 1 else ""
        return [
            f"Op {ops[0]}{more} mixes the samples of a batch, which the plan splits: use"
            " --reference micro-batch."
        ]


def split_parts(pipeline: Pipeline, split: Split, *, on: str) -> Iterator[range]:
    """The rows of the batch, or as the loss stage sees them."""
    if on == "batch":
        yield range(split.num_rows)
        return
    stage = find_loss_stage(pipeline, pipeline.captured)
    for m in range(split.counts[stage]):
        yield from (piece.rows for piece in split.pieces(stage, m) if piece.rows)


def find_loss_stage(pipeline: Pipeline, captured: Captured) -> int:
    """The stage that computes the loss."""
    stages = pipeline.plan.stages.stages
    return next(s for s, stage in enumerate(stages) if captured.graph.loss in stage.ops)


def compare_runs(
    losses: list[float],
    wanted: list[float],
    weights: dict[str, torch.Tensor],
    saved: Path,
) -> dict[str, Any]:
    """The largest differences of losses and parameters."""
    loss_gap = largest_gap(zip(losses, wanted, strict=True))
    manifest = read_manifest(saved)
    parameter_gap = 0.0
    for name in sorted(weights.keys() & manifest.file_by_tensor.keys()):
        tensor = read_checkpoint(saved, manifest, {name})[name]
        if weights[name].is_floating_point():
            gap = float((tensor.double() - weights[name].detach().double()).abs().max())
            parameter_gap = math.nan if math.isnan(gap) else max(parameter_gap, gap)
    return {
        "losses": wanted,
        "largest_loss_difference": loss_gap,
        "largest_parameter_difference": parameter_gap,
    }


def explain_gap(gap: float, reasons: list[str]) -> dict[str, str]:
    """What a user should know about a difference of the losses."""
    if reasons and gap != 0.0:
        return {"hint": " ".join(reasons)}
    if not gap < FAR:
        return {"hint": "The losses differ, and nothing that is known of the plan says why."}
    return {}


def largest_gap(pairs: Iterable[tuple[float, float]]) -> float:
    """The largest difference; not a number as soon as one of them is not."""
    found = 0.0
    for a, b in pairs:
        gap = abs(a - b)
        if math.isnan(gap):
            return gap
        found = max(found, gap)
    return found
