"""`graphplan run`: train a model under a plan, here or under torchrun."""

from __future__ import annotations

import os
from typing import Any

import click

from graphplan.cli.options import parse_settings


@click.command(
    name="run",
    epilog="Example: graphplan run plan.json examples/mmt.py --steps 100 --reference batch",
)
@click.argument("plan", type=str)
@click.argument("model", type=str, required=False)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the model file, as given to search; may be repeated.",
)
@click.option("--steps", type=click.IntRange(1), default=10, show_default=True)
@click.option("--batch", "batch_size", type=click.IntRange(1), help="Samples of a batch.")
@click.option("--seed", default=0, show_default=True, help="Of weights, data and dropout.")
@click.option(
    "--device",
    help="cpu, cuda, or cuda:2 (GPUs of a host from number 2 on); the accelerator if there is one.",
)
@click.option("--tf32", is_flag=True, help="Let accelerators round float32 products to TF32.")
@click.option(
    "--deterministic",
    is_flag=True,
    help="Refuse kernels whose sums come out differently each time.",
)
@click.option(
    "--bind-cores/--no-bind-cores",
    default=None,
    help="Keep ranks on a CPU to their own cores; by default unless torchrun starts them.",
)
@click.option(
    "--init",
    type=click.Choice(["exact", "stage"]),
    default="exact",
    show_default=True,
    help="First weights: exactly those of build(), or drawn for each rank's stages only.",
)
@click.option(
    "--lr",
    "learning_rate",
    default=1e-3,
    show_default=True,
    help="When the model file has no optimizer().",
)
@click.option("--clip-norm", type=float, help="Clip gradients by their global norm.")
@click.option(
    "--check-finite",
    is_flag=True,
    help="Stop at the first value or gradient that is not finite, before it changes weights.",
)
@click.option("--save", metavar="FOLDER", help="Write checkpoints there; one run at a time.")
@click.option("--save-every", type=click.IntRange(1), help="Steps between checkpoints.")
@click.option(
    "--keep-last",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="Checkpoints that stay; the last one with finite weights always does.",
)
@click.option(
    "--resume",
    metavar="FOLDER",
    help="Go on from the last checkpoint there, or from the one that is given itself.",
)
@click.option(
    "--verify/--no-verify",
    default=True,
    show_default=True,
    help="Compare the checksums of the checkpoint that is resumed from.",
)
@click.option("--emulate", is_flag=True, help="Wait in place of computing: no model is needed.")
@click.option(
    "--emulate-bytes",
    type=click.IntRange(0),
    default=1 << 16,
    show_default=True,
    help="Most bytes that an emulated message really carries.",
)
@click.option(
    "--reference",
    type=click.Choice(["batch", "micro-batch"]),
    help="Train in one process too, on whole batches or micro-batches, and compare.",
)
@click.option("-o", "--timeline", metavar="FILE", help="Write the measured timeline (run.json).")
@click.option(
    "--hang-timeout",
    "hang_timeout_s",
    default=10.0,
    show_default=True,
    help="Seconds without progress after which a task counts as hanging.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--quiet", is_flag=True, help="Print nothing but warnings.")
def command(settings: tuple[str, ...], **wishes: Any) -> None:
    """Train MODEL under PLAN, one process for each device of the plan.

    Under torchrun, each process runs this command and takes its rank from there:

      torchrun --nnodes 2 --nproc-per-node 4 ... -m graphplan_runtime plan.json model.py

    A model.py runs when it is opened, and so does a .pt2 file: open only your own.
    """
    from graphplan_runtime.options import RunOptions

    options = RunOptions(settings=parse_settings(settings), **wishes)
    options.check()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        from graphplan_runtime.worker import run_rank

        run_rank(options)
    else:
        from graphplan_runtime.launch import launch_ranks

        launch_ranks(options)
