"""Training: from a model file and a plan to losses, checkpoints, a report and a timeline."""

from __future__ import annotations

import dataclasses
import os
import time

import torch

import graphplan
from graphplan.files import encode_noun
from graphplan.frontend import Captured, ModelFile, load_model_file, trace_model_file
from graphplan.nouns.plan import Plan
from graphplan_runtime.agreement import require_agreement
from graphplan_runtime.batches import Batches
from graphplan_runtime.faults.board import Board
from graphplan_runtime.faults.status import Phase, Status
from graphplan_runtime.hosts import compare_seats, find_seat, gather_seats
from graphplan_runtime.options import RunOptions
from graphplan_runtime.pipeline import Pipeline
from graphplan_runtime.report import Reporter, RunReport, collect_reports, measure_peak
from graphplan_runtime.stages.capture import check_model
from graphplan_runtime.stages.initialize import initialize_weights
from graphplan_runtime.updates.holdings import Holdings
from graphplan_runtime.updates.update import Optimizers


def train_plan(
    plan: Plan, options: RunOptions, *, device: torch.device, status: Status, board: Board
) -> None:
    """Train on this rank; rank 0 reports."""
    reporter = Reporter(options)
    set_numerics(options)
    rank = torch.distributed.get_rank()
    seats = gather_seats(board, find_seat(device), rank=rank, num_ranks=len(plan.program))
    for word in compare_seats(plan.cluster, seats):
        reporter.warn(word)
    status.enter(Phase.BUILDING)
    assert options.model is not None
    model_file = load_model_file(options.model, settings=options.settings)
    captured = trace_model_file(model_file)
    check_model(plan, captured)
    with status.waiting():
        require_agreement(list_facts(plan, options, captured))
    pipeline = make_pipeline(plan, options, model_file, captured, device=device, status=status)
    pipeline.warn = reporter.warn
    if options.resume:
        status.enter(Phase.LOADING)
        pipeline.load(options.resume, verify=options.verify)
    batch_size = options.batch_size or plan.training.batch_size
    # A resumed run goes on with the batches, too, that the checkpoint's seed draws.
    batches = Batches(model_file, batch_size=batch_size, seed=pipeline.seed)
    batches.skip(pipeline.num_steps)
    run = _Run(pipeline, batches, options, reporter)
    report = run.train()
    status.enter(Phase.REPORTING)
    reports = collect_reports(report, pipeline, board, options)
    try:
        if options.reference:
            from graphplan_runtime.reference import compare_reference

            status.enter(Phase.REFERENCE)
            compare_reference(reports, pipeline, model_file, options)
    finally:  # The run has ended well, whatever happens to the comparison.
        reporter.finish(reports, rank=pipeline.rank)


def set_numerics(options: RunOptions) -> None:
    """What was asked for; else torch's defaults and the model file's own settings hold."""
    if options.tf32:
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it.
        torch.use_deterministic_algorithms(True)


def list_facts(plan: Plan, options: RunOptions, captured: Captured) -> dict[str, str]:
    """What all ranks must have in common."""
    return {
        "plan": encode_noun(plan).decode(),
        "model": captured.graph.fingerprint,
        "seed, number of steps or batch size": f"{options.seed} {options.steps}"
        f" {options.batch_size}",
        "version of torch or graphplan": f"{torch.__version__} {graphplan.__version__}",
    }


def make_pipeline(
    plan: Plan,
    options: RunOptions,
    model_file: ModelFile,
    captured: Captured,
    *,
    device: torch.device,
    status: Status,
) -> Pipeline:
    """This rank's pipeline, with the weights of its stages only."""
    rank = torch.distributed.get_rank()
    holdings = Holdings(captured.graph, plan.stages)
    own = set(plan.prices.stages_by_device[rank])
    names = {
        alias
        for name, stages in holdings.stages_by_weight.items()
        if own.intersection(stages)
        for alias in (name, *captured.graph.weight_by_name[name].aliases)
    }
    state = initialize_weights(model_file, names, seed=options.seed, exact=options.init == "exact")
    return Pipeline(
        plan,
        captured,
        optimizer=choose_optimizer(plan, options, model_file),
        clip_norm=options.clip_norm,
        seed=options.seed,
        device=device,
        state=state,
        copy_state=False,
        recapture=lambda inputs: trace_model_file(dataclasses.replace(model_file, inputs=inputs)),
        check_finite=options.check_finite,
        status=status,
    )


def choose_optimizer(plan: Plan, options: RunOptions, model_file: ModelFile) -> Optimizers:
    """The model file's optimizer, else the planned one with the learning rate of the options.

    Fused: one pass over weights, gradients and state, as the cost model prices an update; torch has
    no such pass over complex weights.
    """
    given = model_file.optimizer
    if given is not None:
        return given
    name, rate = plan.training.optimizer, options.learning_rate

    def make(trained: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        fused = not any(each.is_complex() for each in trained)
        if name in ("adam", "adamw"):
            kind = torch.optim.AdamW if name == "adamw" else torch.optim.Adam
            return kind(trained, lr=rate, fused=fused)
        momentum, nesterov = 0.0 if name == "sgd" else 0.9, name == "nesterov"
        return torch.optim.SGD(trained, lr=rate, momentum=momentum, nesterov=nesterov, fused=fused)

    return make


@dataclasses.dataclass
class _Run:
    """The loop over steps."""

    pipeline: Pipeline
    batches: Batches
    options: RunOptions
    reporter: Reporter

    def train(self) -> RunReport:
        """Train, with the folder of checkpoints in our hands from the first step to the last."""
        if self.options.save:
            self.pipeline.status.enter(Phase.SAVING)
            self.pipeline.prepare_save(self.options.save)
        try:
            return self._train()
        finally:
            self.pipeline.close()

    def _train(self) -> RunReport:
        first = self.pipeline.num_steps
        report = RunReport(lag=self.pipeline.lag, first=first)
        for index in range(self.options.steps):
            self.pipeline.status.enter(Phase.READING_DATA, step=self.pipeline.num_steps)
            batch = self.batches.take()
            start = time.perf_counter()
            loss = self.pipeline.step(batch)
            report.add(loss, time.perf_counter() - start, self.pipeline.ended)
            if self.pipeline.rank == 0:
                known = loss if report.losses else None
                self.reporter.show_step(self.pipeline.num_steps, known, report.step_s[-1])
                self.reporter.watch_losses(report)
            # Before the drain: a resumed run goes on as if it had never ended.
            self._save(is_last=index == self.options.steps - 1)
        start = time.perf_counter()
        losses = self.pipeline.drain()
        drain_s = time.perf_counter() - start if losses else 0.0
        report.end(losses, drain_s, self.pipeline.ended if losses else {})
        if self.pipeline.rank == 0:
            self.reporter.watch_losses(report)
        report.peak_bytes = measure_peak(self.pipeline.device)
        return report

    def _save(self, *, is_last: bool) -> None:
        every = self.options.save_every
        due = every is not None and self.pipeline.num_steps % every == 0
        if self.options.save and (due or is_last):
            self.pipeline.status.enter(Phase.SAVING)
            self.pipeline.save(self.options.save, keep_last=self.options.keep_last)
