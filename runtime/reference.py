"""The reference: the same steps in one process, with the user's own module, for comparison.

On whole batches by default: a loss that is a mean over samples gives the same gradients whether a
batch is split or not. A loss that compares the samples of a batch with each other (contrastive
losses, batch norm) depends on how the batch is split; `micro-batch` splits as the plan does.
"""

from __future__ import annotations

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
from graphplan_runtime.batches import Batches
from graphplan_runtime.checkpoints.checkpoint import read_checkpoint, read_manifest
from graphplan_runtime.messages.parcels import split_batch
from graphplan_runtime.messages.rows import find_axis
from graphplan_runtime.options import RunOptions
from graphplan_runtime.pipeline import Pipeline
from graphplan_runtime.report import WholeReport
from graphplan_runtime.stages.initialize import list_weights
from graphplan_runtime.stages.variants import count_samples
from graphplan_runtime.train import choose_optimizer

FAR = 1e-3


def compare_reference(
    report: WholeReport, pipeline: Pipeline, model_file: ModelFile, options: RunOptions
) -> None:
    """Train in one process on rank 0 and add the differences to the report."""
    with tempfile.TemporaryDirectory(prefix="graphplan-reference-") as name:
        folder = Path(name) if pipeline.rank == 0 else None
        shared = pipeline.transport.spread_text(str(folder or ""), source=0)
        saved = pipeline.save(shared)
        if pipeline.rank == 0:
            losses, weights = train_reference(pipeline, model_file, options)
            report.facts["reference"] = compare_runs(
                report.facts["losses"], losses, weights, saved, on=str(options.reference)
            )
        pipeline.transport.meet()


def train_reference(
    pipeline: Pipeline, model_file: ModelFile, options: RunOptions
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and final weights of the user's module."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        module = model_file.build()
    whole = module
    if model_file.loss is not None:
        whole = WithLoss(module, model_file.loss, make_example(model_file.inputs))
    trained = [p for p in module.parameters() if p.requires_grad]
    optimizer = choose_optimizer(pipeline.plan, options, model_file)(trained)
    batch_size = options.batch_size or pipeline.plan.training.batch_size
    batches = Batches(model_file, batch_size=batch_size, seed=options.seed)
    losses = []
    for _ in range(options.steps):
        parts = list(split_parts(pipeline, batches.take(), options))
        losses.append(sum(_accumulate(whole, part, share) for part, share in parts))
        if options.clip_norm is not None:
            nn.utils.clip_grad_norm_(trained, options.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
    return losses, list_weights(module)


def _accumulate(module: nn.Module, part: Arguments, share: float) -> float:
    result: Any = module(*part.args, **part.kwargs)
    loss = result["loss"] if not isinstance(result, torch.Tensor) else result
    torch.autograd.backward(loss * share)
    return float(loss.detach()) * share


def split_parts(
    pipeline: Pipeline, batch: Any, options: RunOptions
) -> Iterator[tuple[Arguments, float]]:
    """The batch whole, or as the loss stage sees it, with the share of samples of each part."""
    arguments = Arguments(*split_arguments(batch))
    if options.reference == "batch":
        yield arguments, 1.0
        return
    captured = pipeline.captured
    num_rows = count_samples(captured.graph, captured.flatten_batch(batch))
    stage = find_loss_stage(pipeline, captured)
    split = split_batch(pipeline.plan, captured.graph, num_rows)
    for m in range(split.counts[stage]):
        for piece in split.pieces(stage, m):
            if piece.rows:
                yield cut_rows(arguments, captured, piece.rows), len(piece.rows) / num_rows


def find_loss_stage(pipeline: Pipeline, captured: Captured) -> int:
    """The stage that computes the loss."""
    stages = pipeline.plan.stages.stages
    return next(s for s, stage in enumerate(stages) if captured.graph.loss in stage.ops)


def cut_rows(arguments: Arguments, captured: Captured, rows: range) -> Arguments:
    """Some samples of a batch."""
    tensors = []
    for given, tensor in zip(captured.graph.inputs, arguments.tensors, strict=True):
        axis = find_axis(given.spec)
        tensors.append(
            tensor.narrow(axis.dim, rows.start * axis.scale, len(rows) * axis.scale)
            if axis
            else tensor
        )
    return arguments.with_tensors(tensors)


def compare_runs(
    losses: list[float],
    wanted: list[float],
    weights: dict[str, torch.Tensor],
    saved: Path,
    *,
    on: str,
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
    found: dict[str, Any] = {
        "on": on,
        "losses": wanted,
        "largest_loss_difference": loss_gap,
        "largest_parameter_difference": parameter_gap,
    }
    if not loss_gap < FAR:
        split = "if the loss compares samples of a batch with each other, use --reference"
        split = f"{split} micro-batch; " if on == "batch" else ""
        found["hint"] = f"The losses differ: {split}dropout draws other numbers in one process."
    return found


def largest_gap(pairs: Iterable[tuple[float, float]]) -> float:
    """The largest difference; not a number as soon as one of them is not."""
    found = 0.0
    for a, b in pairs:
        gap = abs(a - b)
        if math.isnan(gap):
            return gap
        found = max(found, gap)
    return found
