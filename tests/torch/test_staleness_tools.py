"""The staleness experiments: tasks cut into stages, tuning inside the grid, equal time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from graphplan.nouns.policy import WeightPolicy
from graphplan.schedule.gpipe import build_gpipe
from graphplan.staleness.optimizers import Sgd
from graphplan.staleness.replay import replay_schedule
from graphplan.staleness.shapes import make_chain
from tools.staleness_delays import count_local, run_method
from tools.staleness_problems import PROBLEMS, find_optimum
from tools.staleness_tasks import EVERYTHING, TASKS, make_charlm
from tools.staleness_tuning import REPORT_SEEDS, TUNING_SEEDS, fill_rows, tune_rate


@pytest.fixture(autouse=True)
def single_thread() -> Iterator[None]:
    """Tensors this small are slower with threads, on a busy machine by far."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", [*TASKS, "charlm"])
def test_staged_steps_equal_whole_ones(name: str) -> None:
    """One step through the stages equals autograd on the whole model; runs do not mix."""
    task = make_charlm(4) if name == "charlm" else TASKS[name]()
    model = task.make_model((3, 4))
    priced = make_chain(4)
    rates = torch.tensor([[0.1], [0.2]])
    replay = replay_schedule(priced, build_gpipe(priced), WeightPolicy(), model, Sgd(rate=rates))
    starts = [model.start_weights(stage).requires_grad_() for stage in range(4)]
    value: tuple[Tensor, ...] = ()
    for stage, layout in enumerate(task.layouts):
        value = (model.run_stage(stage, layout.view_weights(starts[stage]), value, 0),)
    gradients = torch.autograd.grad(value[0].sum(), starts)
    for found, start, gradient in zip(replay.weights, starts, gradients, strict=True):
        assert float(gradient.abs().max()) > 0
        torch.testing.assert_close(found, start - rates * gradient, rtol=1e-4, atol=1e-6)
    alone = task.make_model((4,))
    own = replay_schedule(priced, build_gpipe(priced), WeightPolicy(), alone, Sgd(rate=rates[1:]))
    torch.testing.assert_close(own.weights[0][0], replay.weights[0][1], rtol=1e-4, atol=1e-6)


def test_the_grid_grows_until_the_best_rate_is_inside() -> None:
    """The optimum at 0.3 lies beyond the grid; only the report seeds are in the result."""
    seen: list[int] = []

    def measure(rates: Sequence[float], seeds: Sequence[int]) -> list[float]:
        seen.extend(seeds)
        return [
            float("nan") if rate > 1 else (rate - 0.3) ** 2 + 0.001 * seed
            for rate, seed in zip(rates, seeds, strict=True)
        ]

    tuned = tune_rate(measure, [0.01, 0.02])
    assert (tuned.rate, tuned.is_inside) == (0.32, True)
    assert tuned.losses == pytest.approx([0.0004 + 0.001 * seed for seed in REPORT_SEEDS])
    assert set(seen) == {*TUNING_SEEDS, *REPORT_SEEDS}
    assert tuned.error == pytest.approx(0.001 * 3.0276503541 / 10**0.5)


def test_a_diverging_run_counts_as_infinite() -> None:
    """One run that is not a number spoils the mean, and is never the best."""
    tuned = tune_rate(lambda rates, seeds: [float("nan")] * len(rates), [0.1, 0.2, 0.4])
    assert tuned.mean == tuned.error == float("inf")
    assert not tuned.is_inside


def test_localsgd_gets_the_time_of_pipedream() -> None:
    """At S = 16 in 1,230 ticks: 416 micro-batches with H = 2, 496 with 5, 576 with 30."""
    assert [count_local(16, steps) for steps in (2, 5, 30)] == [416, 496, 576]


@pytest.mark.parametrize("method", ["control", "pipedream", "rpd", "local 5"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_methods_descend(problem: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty micro-batches at a small rate lower the loss of every problem under every method."""
    monkeypatch.setattr("tools.staleness_delays.NUM_MICRO_BATCHES", 40)
    model = PROBLEMS[problem](4, (1, 2))
    starts = [model.start_weights(stage) for stage in range(4)]
    before = model.evaluate(starts, EVERYTHING)
    after = model.evaluate(run_method(model, method, torch.full((2, 1), 0.05)), EVERYTHING)
    assert bool((after < before).all())
    assert bool((after > find_optimum(problem)).all())


def test_rows_that_are_there_are_not_measured_again(tmp_path: Path) -> None:
    """A run that was stopped goes on with what is missing."""
    path, asked = tmp_path / "rows.json", []

    def measure(key: dict[str, Any]) -> dict[str, Any]:
        asked.append(key["stages"])
        tuned = tune_rate(lambda rates, _: [(rate - 1) ** 2 for rate in rates], [0.5, 1, 2])
        return tuned.describe()

    for last in (3, 5):
        keys = [{"stages": n, "method": "stash"} for n in range(1, last)]
        fill_rows(path, keys, measure, head={"seeds": 10})
    assert asked == [1, 2, 3, 4]
    found = json.loads(path.read_text())
    assert found["seeds"] == 10
    assert [(row["stages"], row["rate"]) for row in found["rows"]] == [(n, 1) for n in asked]
