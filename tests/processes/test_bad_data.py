"""Bad data: what a run says of it, and that nothing is lost that was saved."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from graphplan.errors import BadInput, ModelFileError
from graphplan.files import write_noun
from graphplan.frontend import load_model_file, trace_model_file
from graphplan_runtime.batches import Batches
from graphplan_runtime.options import RunOptions
from graphplan_runtime.report import Reporter, RunReport, WholeReport
from tests.processes.baddata import data
from tests.processes.crew import Crew
from tests.processes.plans import plan_by_hand
from tests.processes.training import Setup, make_pipeline

MODEL = Path(__file__).parent / "baddata.py"


def write_plan(folder: Path) -> Path:
    """Two ranks."""
    graph = trace_model_file(load_model_file(MODEL)).graph
    plan = plan_by_hand(
        graph,
        {op.name: int(op.name in ("linear_1", "mse_loss")) for op in graph.ops},
        devices=[(0,), (1,)],
        batch_size=8,
        micro_batch_size=2,
    )
    write_noun(plan, folder / "plan.json")
    return folder / "plan.json"


def refuse_constant(name: str) -> Any:
    """JSON has no such number."""
    raise AssertionError(f"{name} is not JSON")


def test_a_bad_batch_leaves_the_last_good_checkpoint(tmp_path: Path) -> None:
    """The run goes on, says so, prints JSON, and never saves over good weights."""
    saved = tmp_path / "saved"
    command = [sys.executable, "-m", "graphplan", "run", str(write_plan(tmp_path)), str(MODEL)]
    command += ["--set", "fault=odd", "--device", "cpu", "--steps", "6", "--json"]
    command += ["--save", str(saved), "--save-every", "1", "--keep-last", "1"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout, parse_constant=refuse_constant)
    assert facts["not_finite_steps"] == [3, 4, 5, 6]
    assert [loss is None for loss in facts["losses"]] == [False] * 2 + [True] * 4
    said = done.stderr.splitlines()
    assert said[0].startswith("Warning: The loss of step 3 is nan; the run goes on.")
    assert said[1].startswith("Warning: After step 3, ")
    assert len(said) == 1 + 4
    assert (saved / "latest").read_text() == "step-00000002\n"
    names = sorted(path.name for path in saved.iterdir())
    assert names == ["latest", "step-00000002", "step-00000006"]


def test_losses_that_are_not_finite_are_said_now_and_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first, then every 100th; steps count from where the run was resumed."""
    report, reporter = RunReport(first=10), Reporter(RunOptions(plan="p", as_json=True))
    for number in range(250):
        report.add(1.0 if number < 5 else math.inf, 0.1, {})
        reporter.watch_losses(report)
    said = capsys.readouterr().err.splitlines()
    assert [line.split()[5] for line in said] == ["16", "116", "216"]
    assert report.list_not_finite() == list(range(16, 261))
    reporter.finish(WholeReport({"losses": report.losses, "x": [math.nan]}, []), rank=0)
    told = json.loads(capsys.readouterr().out, parse_constant=refuse_constant)
    assert told["losses"][:6] == [1.0] * 5 + [None]


def make_bad(fault: str) -> Any:
    """Batches that are bad from the third on."""
    model_file = load_model_file(MODEL, settings={"fault": fault})
    return Batches(model_file, batch_size=8, seed=0)


def test_data_that_raises_is_told_with_its_line_and_step() -> None:
    """As every other function of the model file."""
    batches = make_bad("raise")
    batches.skip(2)
    with pytest.raises(ModelFileError, match=r"baddata.py:\d+: data\(\) of step 3 raised OSError"):
        batches.take()


def test_data_that_ends_begins_again(tmp_path: Path) -> None:
    """And data that never gives a batch, or is none, is refused."""
    path = tmp_path / "short.py"
    for given, told in (
        ("range(2)", None),
        ("range(0)", "gives no batch"),
        ("7", "data() of step 1 raised TypeError"),
    ):
        path.write_text(
            "def build(): pass\ndef inputs(batch_size): pass\n"
            f"def data(batch_size): return {given}\n"
        )
        batches = Batches(load_model_file(path), batch_size=8, seed=0)
        if told is None:
            assert [batches.take() for _ in range(5)] == [0, 1, 0, 1, 0]
        else:
            with pytest.raises(ModelFileError) as caught:
                batches.take()
            assert told in caught.value.message


def step_on_bad(setup: Setup, fault: str) -> str:
    """The error of the third batch."""
    pipeline = make_pipeline(setup, dtype=torch.float32)
    batches: Iterator[Any] = data(8, fault)
    for _ in range(2):
        pipeline.step(_as_case(next(batches)))
    try:
        pipeline.step(_as_case(next(batches)))
    except BadInput as error:
        return error.message
    return "no error"


def _as_case(batch: Any) -> Any:
    """The first six columns as a tuple, as the cases have them; of another structure as it is."""
    if isinstance(batch, list):
        return {"x": batch[0], "target": batch[1]}
    return tuple(each[:, :6] for each in batch.values())


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("dtype", "x is float64, and was captured as float32"),
        ("width", "shapes cannot be multiplied"),
        ("empty", "holds no sample"),
        ("rows", "do not have one number of samples"),
        ("array", "holds 1 tensors, the one that was captured 2"),
        ("structure", "another structure"),
    ],
)
def test_bad_batches_are_refused_with_their_step(crew: Crew, fault: str, told: str) -> None:
    """As bad input, on every rank."""
    setup = Setup(case="roots", devices=[(0,), (1,)])
    for message in crew.run(2, step_on_bad, setup, fault):
        assert message.startswith("The batch of step 3: ")
        assert told in message
