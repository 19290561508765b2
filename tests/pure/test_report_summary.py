"""The summary on terminals: the whole picture, as it is printed."""

from __future__ import annotations

import io
from typing import get_args

import msgspec
import pytest
from rich.console import Console

from graphplan.api import explain
from graphplan.errors import InvalidFile
from graphplan.nouns.opgraph import MixingKind
from graphplan.nouns.plan import MixedOp
from graphplan.nouns.stages import Stage, StageGraph
from graphplan.report.certainty import describe_step, is_undecided
from graphplan.report.labels import count_by_prefix, label_stages, name_modules
from graphplan.report.limits import Topic, find_limits
from graphplan.report.pageparts import TOPIC_NAMES
from graphplan.report.spans import split_spans
from graphplan.report.stagerows import count_in_flight, describe_stages
from graphplan.report.summary import render_summary, render_text
from graphplan.report.usage import measure_usage
from tests.pure.files import make_graph_example
from tests.pure.plans import make_plan_example
from tests.pure.strategies import branch_edges, chain_edges

TWO_STAGES = """\
two-tower on 2 x a100-80gb (dgx-a100)
batch 8 in micro-batches of 4, adam, float32, schedule 1f1b, weights flush

step time    95.81 ms          lower bound   91.98 ms
throughput   83.50 samples/s   gap           at most 4.2%
bubble       33.2%             peak memory   33.0 GB (45.8% of the limit)
predicted 95.81 ms, +-4% (16 steps, fp32, A100)

over data parallel (DDP)              1.42x   its step takes 136.0 ms
over data parallel with ZeRO-1        -       found no plan that fits
over FSDP (ZeRO-3)                    -       found no plan that fits
over the best sequential pipeline     1.17x   its step takes 112.1 ms
over the best linear cut as a graph   1.05x   its step takes 100.6 ms

Stages
●  0  towers.0.layers.0-3                                                  GPU 0
●  1  towers.1.layers.0-3                                                  GPU 1

stage  ops  params  devices  fwd ms  bwd ms  in flight          memory / limit
    0   12  50.4 M  GPU 0     10.00   21.00          2  33.0 GB / 72.0 GB  46%
    1   12  50.4 M  GPU 1     10.00   21.00          1  28.0 GB / 72.0 GB  39%

Timeline of one step, with the busy share of each device
GPU 0       0░░░░░1░░░░░░              0▓▓▓▓▓▓▓▓▓▓▓▓▓      1▓▓▓▓▓▓▓▓▓▓▓▓▓=  67%
GPU 1              0░░░░░0▓▓▓▓▓▓▓▓▓▓▓▓▓1░░░░░1▓▓▓▓▓▓▓▓▓▓▓▓▓=                67%
            0 ms         20.0 ms      40.0 ms      60.0 ms      80.0 ms
            ░ forward  ▓ backward  = update

What limits it
• Stage 1 is 64.7% of the critical path.
  towers.1.layers.0-3 on GPU 1. It consists of stage 1 64.7%, stage 0 32.4%,
  update of stage 0 2.1%, transfers 0.8%, 1 more.
"""


def test_summary_of_two_stages() -> None:
    """A small plan prints exactly this at 80 columns, without colour codes."""
    example = make_plan_example(chain_edges(2), num_micro_batches=2, transfer_s=0.0004)
    text = render_text(example.plan, example.timeline)
    assert text.startswith(TWO_STAGES)
    assert "costs: estimated by the laws of the hardware profile, not measured" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (4, 32), (70, 8)])
def test_lines_fit_the_terminal(width: int, stages: int, micro_batches: int) -> None:
    """No line is wider than the terminal, for few and for very many stages."""
    example = make_plan_example(
        chain_edges(stages), num_micro_batches=micro_batches, ops_per_stage=1
    )
    lines = render_text(example.plan, example.timeline, width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) < 190


def test_ascii_terminals_get_ascii() -> None:
    """A console that cannot show box characters gets a drawing without them."""
    example = make_plan_example(branch_edges(3, 1))
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(file=file, width=80, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(render_summary(example.plan, example.timeline))
    assert captured.get().isascii()
    assert "+-+-+" in captured.get()


def test_terminals_get_colours() -> None:
    """On a terminal tasks have a background colour."""
    example = make_plan_example()
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True, color_system="truecolor")
    console.print(render_summary(example.plan, example.timeline))
    assert "\x1b[37;48;2;47;111;224m" in file.getvalue()


def test_names_cannot_steer_the_terminal() -> None:
    """Escape codes and markup in a model's name are printed as text."""
    example = make_plan_example(name="\x1b[2J[red]evil[/red]\x07")
    text = render_text(example.plan, example.timeline)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[red]evil[/red]" in text


def test_missing_baselines_are_told() -> None:
    """A baseline is missing because nothing fits, or nobody asked; others have their names."""
    example = make_plan_example()
    plan = msgspec.structs.replace(example.plan, baselines={"equal-split": 0.2})
    text = render_text(plan, example.timeline)
    assert "over data parallel (DDP)              -       found no plan that fits" in text
    asked = msgspec.structs.replace(example.plan.provenance, options={"baselines": "False"})
    alone = msgspec.structs.replace(plan, provenance=asked, baselines={})
    assert "over data parallel (DDP)              -   was not asked for" in render_text(
        alone, example.timeline
    )
    assert "over equal-split                      0.62x   its step takes 200.0 ms" in text


def test_labels_tell_the_largest_whole_modules() -> None:
    """A stage is told by the modules that it holds whole; tied weights count once."""
    graph = make_graph_example()
    stages = StageGraph(
        stages=(
            Stage(ops=("linear", "relu"), devices=(0,), micro_batch_size=1),
            Stage(ops=("view", "linear_1", "loss"), devices=(1,), micro_batch_size=1),
        ),
        edges=(),
    )
    first, second = label_stages(graph, stages)
    assert (first.modules, first.num_ops) == (("first",), 2)
    assert (second.modules, second.num_ops) == (("second",), 3)
    assert (first.num_parameters, first.param_bytes) == (64 * 64, 64 * 64 * 4)
    whole = StageGraph(
        stages=(Stage(ops=tuple(op.name for op in graph.ops), devices=(0,), micro_batch_size=1),),
        edges=(),
    )
    assert label_stages(graph, whole)[0].num_parameters == 64 * 64


def test_figures_of_stages() -> None:
    """In-flight counts follow 1F1B: one more for each stage in front; memory follows from them."""
    example = make_plan_example(chain_edges(4), num_micro_batches=8)
    rows = split_spans(example.timeline)
    stages = describe_stages(example.plan, example.timeline, rows)
    assert [row.in_flight for row in stages] == [4, 3, 2, 1]
    gb = 1 << 30
    assert [row.peak_bytes // gb for row in stages] == [22 + 5 * n + 1 for n in (4, 3, 2, 1)]
    assert count_in_flight((), 0) == 0


def test_usage_adds_up() -> None:
    """Busy time, warm-up, waiting and drain of a device add up to the step; so does the path."""
    example = make_plan_example(
        branch_edges(3, 2), forward_s=[0.01, 0.02, 0.005, 0.03, 0.01, 0.02, 0.04]
    )
    rows = split_spans(example.timeline)
    usage = measure_usage(example.timeline, rows)
    total = example.timeline.makespan_s
    for use, busy_s in zip(usage.devices, example.timeline.busy_s_by_device, strict=True):
        assert use.busy_s == pytest.approx(busy_s)
        assert use.busy_s + use.warmup_s + use.waiting_s + use.drain_s == pytest.approx(total)
    assert sum(share.seconds for share in usage.path) == pytest.approx(total)
    stages = describe_stages(example.plan, example.timeline, rows)
    findings = find_limits(example.plan, usage, stages)
    assert findings[0].stage == 6
    assert findings[0].title.startswith("Stage 6 is")
    assert findings[1].title.startswith("GPU 6 works")


def test_the_page_has_a_word_for_every_topic() -> None:
    """It had none for findings on the batch and on learned costs, and stopped at them."""
    assert set(TOPIC_NAMES) == set(get_args(Topic))


def test_all_reduce_and_update_are_named_when_devices_spend_their_time_on_them() -> None:
    """Two replicas that reduce for longer than they compute; terminal and API say the same."""
    example = make_plan_example(chain_edges(2), num_micro_batches=2, num_replicas=2, reduce_s=5.0)
    findings = explain(example.plan)
    assert findings[0].title.startswith("All-reduce of stage")
    assert findings[0].topic == "update"
    told = next(each for each in findings[1:] if each.topic == "update")
    assert "of its work on all-reduce" in told.title
    assert "Fewer replicas of stages with many parameters" in told.text
    text = " ".join(render_text(example.plan, example.timeline).split())
    assert all(each.title in text for each in findings)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (
            "compare",
            "head compares the samples of a batch with each other: a task compares 2 of 32",
        ),
        ("statistics", "head uses statistics of the batch: a task computes them from 2 of 32"),
        ("count", "head takes a mean over a data-dependent count"),
        ("sum", "head is a sum over samples, not a mean"),
    ],
)
def test_a_split_that_changes_the_loss_is_told(kind: MixingKind, told: str) -> None:
    """Which op, what a task sees of the batch, by micro-batches or replicas, and what to type."""
    example = make_plan_example(num_replicas=2)
    op = example.plan.stages.stages[-1].ops[0]
    mixing = (MixedOp(op=op, module="head", kind=kind),)
    plan = msgspec.structs.replace(
        example.plan, model=msgspec.structs.replace(example.plan.model, mixing=mixing)
    )
    text = " ".join(render_text(plan, example.timeline).split())
    assert "Splitting the batch changes what the model computes." in text
    assert told in text
    assert "(8 micro-batches, 2 replicas)" in text
    assert "--micro-batch 32, with --pin MODULE=DEVICE against replicas" in text
    assert "Splitting the batch" not in render_text(example.plan, example.timeline)


def test_a_batch_that_stays_whole_is_not_warned_of() -> None:
    """One micro-batch and no replicas: what mixes samples sees them all."""
    example = make_plan_example(num_micro_batches=1)
    op = example.plan.stages.stages[0].ops[0]
    mixing = (MixedOp(op=op, module="", kind="compare"),)
    plan = msgspec.structs.replace(
        example.plan, model=msgspec.structs.replace(example.plan.model, mixing=mixing)
    )
    assert "Splitting the batch" not in render_text(plan, example.timeline)


def test_parts_that_disagree_are_refused() -> None:
    """A plan whose peaks and devices do not fit together is an error with advice."""
    example = make_plan_example()
    short = msgspec.structs.replace(
        example.plan.stages,
        stages=example.plan.stages.stages + (Stage(ops=(), devices=(4,), micro_batch_size=4),),
    )
    plan = msgspec.structs.replace(example.plan, stages=short)
    with pytest.raises(InvalidFile, match="5 priced stages where 6 are needed"):
        render_summary(plan, example.timeline)


def test_labels_forgive_stray_ops() -> None:
    """A residual addition that falls to the neighbour does not spoil the label of a stage."""
    layers = [f"tower.{i}" for i in range(4) for _ in range(19)]
    layers += [f"tower.{i}.norm" for i in range(4)]
    totals = count_by_prefix([*layers, "head", ""])
    first = [each for each in layers if each.startswith(("tower.0", "tower.1"))]
    assert name_modules(first, totals) == ("tower.0-1",)
    first.remove("tower.1")
    assert name_modules(first, totals) == ("tower.0-1",)
    last = [each for each in layers if each.startswith(("tower.2", "tower.3"))]
    assert name_modules(["tower.1", *last, "head"], totals) == ("tower.2-3", "head")
    assert name_modules(["tower.1"] * 9 + last, totals) == ("tower.2-3", "tower.1 (part)")
    assert name_modules([""], totals) == ("(top level)",)


def test_long_labels_are_folded() -> None:
    """Many small pieces of a module become a part of it."""
    pieces = [f"net.block.{name}" for name in "abcdefgh"]
    totals = count_by_prefix([*pieces, "net.block", "net.head", *["net.block.rest"] * 90])
    assert name_modules([*pieces, "net.head"], totals) == ("net.head", "net.block (part)")


def test_small_gains_over_rivals_are_undecided() -> None:
    """A gain within the expected error is not a gain; unvalidated devices say so."""
    plan = make_plan_example(chain_edges(2), num_micro_batches=2).plan
    assert is_undecided(plan, 1.02)
    assert not is_undecided(plan, 1.3)
    half = msgspec.structs.replace(
        plan, training=msgspec.structs.replace(plan.training, precision="bfloat16")
    )
    assert describe_step(half) == "not validated"
    assert not is_undecided(half, 1.02)
    measured = msgspec.structs.replace(plan.provenance, costs="measured")
    assert describe_step(msgspec.structs.replace(plan, provenance=measured)) == ""
