"""Measuring behind the seam: a clock that is strict about the order of marks and waits.

On an accelerator a mark has no time before the device has finished; the fake refuses to tell it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from graphplan.cost.measure_body import open_body
from graphplan.cost.measure_clock import CpuClock, describe_environment, find_clock
from graphplan.cost.measure_step import measure_step
from graphplan.cost.measure_unit import Effort, measure_unit, summarise
from graphplan.cost.measure_units import UnitBuilder, run_on_fakes
from graphplan.frontend import trace_module

QUICK = Effort(warm_up=1, min_repeats=3, max_repeats=3, budget_s=0.0)


class QueueClock:
    """Every mark is one second after the one before; its time is known after `finish` only."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.name = "queue"
        self.num_marks = 0
        self.num_finished = 0

    def mark(self) -> int:
        """Put a mark into the queue."""
        self.num_marks += 1
        return self.num_marks

    def finish(self) -> None:
        """All marks have passed."""
        self.num_finished = self.num_marks

    def settle(self) -> None:
        """Nothing to flush."""

    def seconds(self, start: int, end: int) -> float:
        """The distance of two marks that have passed."""
        assert end <= self.num_finished, "asked for a time that the device has not reached"
        assert start < end
        return float(end - start)

    def free_bytes(self) -> int:
        """Enough."""
        return 1 << 40

    def peak_bytes(self, run: Callable[[], object]) -> int:
        """Run, and say 100."""
        run()
        return 100


@pytest.mark.parametrize("name", ["relu", "linear"])
def test_units_wait_for_the_device_before_they_read_times(name: str) -> None:
    """Forward and backward are read off marks that have passed."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    captured = trace_module(model, lambda b: (torch.rand(b, 4),))
    values = run_on_fakes(open_body(captured.module), captured.graph, 3)
    clock = QueueClock()
    builder = UnitBuilder(open_body(captured.module), captured.graph, values, clock.device)
    op = [each.name for each in captured.graph.ops if each.kind == name][-1]
    found = measure_unit(builder.build((op,)), values, clock, QUICK)
    assert found.forward_s == 1.0
    assert found.input_grad_s > 0
    assert (found.weight_grad_s > 0) == (name == "linear")
    assert found.workspace_bytes >= 100


def test_steps_wait_for_the_device_before_they_read_times() -> None:
    """The whole step lies between two marks."""
    captured = trace_module(nn.Linear(4, 4), lambda b: (torch.rand(b, 4),))
    values = run_on_fakes(open_body(captured.module), captured.graph, 3)
    found = measure_step(
        open_body(captured.module), captured.graph, values, QueueClock(), effort=QUICK
    )
    assert found == (1.0, 0.0)


def test_the_halves_of_the_backward_add_up_to_both_at_once() -> None:
    """A unit's I and W together take as long as its whole backward, plus adding to the gradient."""
    captured = trace_module(
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), lambda b: (torch.rand(b, 4),)
    )
    values = run_on_fakes(open_body(captured.module), captured.graph, 3)
    builder = UnitBuilder(open_body(captured.module), captured.graph, values, torch.device("cpu"))
    found = measure_unit(builder.build(("linear_1",)), values, QueueClock(), QUICK)
    accumulation = 1.0
    # n autograd nodes put 2n marks into the queue, which span 2n - 1 seconds.
    whole = found.input_grad_s + found.weight_grad_s - accumulation
    assert whole % 2 == pytest.approx(1.0)
    assert 0 < found.input_grad_s < whole


def test_slow_samples_do_not_count() -> None:
    """The statistic is the fast side of the samples; the spread tells of the others."""
    calm, _ = summarise([1.0] * 20)
    disturbed, spread = summarise([1.0] * 12 + [50.0] * 8)
    assert calm == disturbed == 1.0
    assert spread > 1
    assert summarise([3.0]) == (3.0, 0.0)


def test_memory_of_kernels_is_seen_on_the_cpu(capfd: pytest.CaptureFixture[str]) -> None:
    """The peak covers results and what lies beside them for a moment; nothing is printed."""
    clock = CpuClock()
    source = torch.rand(1000)
    peak = clock.peak_bytes(lambda: (source + 1) * 2)
    assert 8000 <= peak < 9000
    assert capfd.readouterr().err == ""


def test_the_environment_names_what_times_depend_on() -> None:
    """Device, torch and threads are part of the cache's key."""
    text = describe_environment(find_clock("cpu"))
    assert torch.__version__ in text
    assert f"{torch.get_num_threads()} threads" in text
