"""Timing one unit: forward, both halves of the backward, and the memory that it needs for a moment.

The forward is repeated inside one pair of marks until the clock can resolve it. The backward is
marked from within: a hook before the first and one behind the last of its autograd nodes, so that
the fixed cost of starting autograd does not count (on a CPU it exceeds many ops). The halves are
timed apart, each with autograd asked for its gradients only, and scaled to the time of both
together. Weight gradients include adding them to those of earlier micro-batches.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from graphplan.cost.cache import Measurement
from graphplan.cost.measure_clock import Clock, Mark
from graphplan.cost.measure_tensors import find_bound, find_offsets, make_tensor
from graphplan.cost.measure_units import Unit, Values

RESOLUTION_S = 2e-4
"""Forwards are repeated until they take this long together."""
MAX_INNER = 64


@dataclasses.dataclass(frozen=True)
class Effort:
    """How long to measure: repeats until `budget_s` is spent, longer where times scatter."""

    warm_up: int = 2
    min_repeats: int = 4
    max_repeats: int = 1000
    budget_s: float = 0.02
    patience: float = 10.0
    """Most budgets that scattering times may cost."""
    calm: float = 0.2
    """Spread of the faster half below which times do not scatter."""
    counted: tuple[float, float] = (0.1, 0.4)
    """Percentiles between which samples count. Other programs only ever slow a sample down, so that
    the slow side is trimmed more; neighbours that belong to the run must not be trimmed away."""

    def beside_others(self) -> Effort:
        """The same among neighbours."""
        return dataclasses.replace(self, counted=(0.25, 0.75))


def summarise(
    samples: Sequence[float], counted: tuple[float, float] = Effort.counted
) -> tuple[float, float]:
    """(trimmed mean, spread): the mean between two percentiles, and the interquartile range over
    the median.
    """
    ordered = sorted(samples)
    count = len(ordered)
    first = int(count * counted[0])
    middle = ordered[first : max(first + 1, int(count * counted[1]))]
    median = ordered[count // 2]
    width = ordered[min(count - 1, count * 3 // 4)] - ordered[count // 4]
    return statistics.fmean(middle), width / median if median else 0.0


def repeat(sample: Callable[[], float], clock: Clock, effort: Effort) -> tuple[float, float]:
    """Trimmed mean and spread of a sampling function."""
    for _ in range(effort.warm_up):
        sample()
    samples: list[float] = []
    start = time.monotonic()
    while len(samples) < effort.max_repeats:
        samples.append(sample())
        spent = time.monotonic() - start
        enough = len(samples) >= effort.min_repeats and spent > effort.budget_s
        if enough and (spent > effort.patience * effort.budget_s or _is_calm(samples, effort)):
            break
    clock.finish()
    return summarise(samples, effort.counted)


def _is_calm(samples: Sequence[float], effort: Effort) -> bool:
    ordered = sorted(samples)
    low, middle = ordered[len(ordered) // 10], ordered[len(ordered) // 2]
    return middle - low <= effort.calm * low


@dataclasses.dataclass(frozen=True)
class Numerics:
    """In what precision ops are measured; by default that of the model."""

    cast: str | None = None
    """Dtype that takes the place of float32 in all tensors."""
    autocast: str | None = None
    """Dtype that torch.autocast computes in; casts count."""
    tf32: bool = False
    """Whether float32 products run on matrix units."""
    compiled: bool = False
    """Whether torch.compile makes the kernels of a unit."""

    @contextlib.contextmanager
    def active(self, device: torch.device) -> Iterator[None]:
        """Compute so inside."""
        dtype = getattr(torch, self.autocast) if self.autocast else None
        before = torch.get_float32_matmul_precision()
        if self.tf32:
            torch.set_float32_matmul_precision("high")
        try:
            with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
                yield
        finally:
            torch.set_float32_matmul_precision(before)

    def convert(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor as ops find it."""
        if self.cast is None or tensor.dtype != torch.float32:
            return tensor
        return tensor.to(getattr(torch, self.cast))

    def __str__(self) -> str:
        parts = [f"in {self.cast}"] if self.cast else []
        parts += [f"autocast to {self.autocast}"] if self.autocast else []
        parts += ["tf32"] if self.tf32 else []
        return ", ".join([*parts, "compiled"] if self.compiled else parts)


AS_MODELLED = Numerics()


def measure_unit(
    unit: Unit, values: Values, clock: Clock, effort: Effort, numerics: Numerics = AS_MODELLED
) -> Measurement:
    """Times and bytes of one unit."""
    with (
        torch.random.fork_rng(enabled=clock.device.type == "cpu"),
        torch.enable_grad(),
        numerics.active(clock.device),
    ):
        return _Bench(unit, values, clock, numerics).measure(effort)


class _Bench:
    """A unit with tensors to run on."""

    def __init__(self, unit: Unit, values: Values, clock: Clock, numerics: Numerics) -> None:
        self.unit = unit
        self.clock = clock
        self.given: list[torch.Tensor] = []
        for node, half in zip(unit.readings, unit.halves, strict=True):
            tensor = make_tensor(
                values[node],
                device=clock.device,
                bound=find_bound(node, values.__getitem__),
                offsets_of=find_offsets(node, values.__getitem__),
            )
            self.given.append(numerics.convert(tensor).requires_grad_(half is not None))

    def measure(self, effort: Effort) -> Measurement:
        forward, spread = repeat(self._sample_forward(), self.clock, effort)
        inputs = self._leaves("input")
        weights = self._leaves("weight")
        input_grad, weight_grad, worst = self._measure_backward(inputs, weights, effort)
        return Measurement(
            forward_s=forward,
            input_grad_s=input_grad,
            weight_grad_s=weight_grad + self._measure_accumulation(weights, effort),
            workspace_bytes=self._measure_workspace(),
            spread=max(spread, worst),
        )

    def _leaves(self, half: str) -> list[torch.Tensor]:
        pairs = zip(self.given, self.unit.halves, strict=True)
        return [tensor for tensor, own in pairs if own == half]

    def _sample_forward(self) -> Callable[[], float]:
        if self.clock.device.type != "cpu":
            return lambda: self._time_calls(1)
        once = self._time_calls(1)
        inner = min(MAX_INNER, max(1, int(RESOLUTION_S / max(once, 1e-7))))
        return lambda: self._time_calls(inner) / inner

    def _time_calls(self, count: int) -> float:
        run, given = self.unit.line, self.given
        self.clock.settle()
        start = self.clock.mark()
        for _ in range(count):
            run(*given)
        end = self.clock.mark()
        self.clock.finish()
        return self.clock.seconds(start, end)

    def _measure_backward(
        self, inputs: list[torch.Tensor], weights: list[torch.Tensor], effort: Effort
    ) -> tuple[float, float, float]:
        """(input half, weight half, spread); the halves add up to both at once."""
        if not (inputs or weights) or not self._differentiable():
            return 0.0, 0.0, 0.0
        whole, spread = self._repeat_backward([*inputs, *weights], effort)
        if not weights:
            return whole, 0.0, spread
        if not inputs:
            return 0.0, whole, spread
        halves = [self._repeat_backward(each, effort)[0] for each in (inputs, weights)]
        scale = whole / sum(halves) if sum(halves) else 0.0
        return halves[0] * scale, halves[1] * scale, spread

    def _repeat_backward(self, leaves: list[torch.Tensor], effort: Effort) -> tuple[float, float]:
        return repeat(lambda: self._time_backward(leaves), self.clock, effort)

    def _differentiable(self) -> list[torch.Tensor]:
        return [each for each in self.unit.line(*self.given) if each.requires_grad]

    def _time_backward(self, leaves: list[torch.Tensor]) -> float:
        results = self._differentiable()
        marks = _mark_nodes(results, self.clock)
        gradients = [torch.ones_like(each) for each in results]
        self.clock.finish()
        self.clock.settle()
        torch.autograd.grad(results, leaves, gradients, allow_unused=True)
        self.clock.finish()
        return self.clock.seconds(marks[0], marks[-1]) if marks else 0.0

    def _measure_accumulation(self, weights: list[torch.Tensor], effort: Effort) -> float:
        """Adding the gradients to those of earlier micro-batches."""
        if not weights or not self._differentiable():
            return 0.0
        sums = [torch.zeros_like(weight) for weight in weights]
        fresh = [torch.ones_like(weight) for weight in weights]

        def sample() -> float:
            self.clock.settle()
            start = self.clock.mark()
            for total, gradient in zip(sums, fresh, strict=True):
                total.add_(gradient)
            end = self.clock.mark()
            self.clock.finish()
            return self.clock.seconds(start, end)

        return repeat(sample, self.clock, effort)[0]

    def _measure_workspace(self) -> int:
        """Most bytes at once: results and scratch forward, gradients and scratch backward."""
        forward = self.clock.peak_bytes(lambda: self.unit.line(*self.given))
        results = self._differentiable()
        leaves = self._leaves("input") + self._leaves("weight")
        if not results or not leaves:
            return forward
        gradients = [torch.ones_like(each) for each in results]
        incoming = sum(_own_bytes(each) for each in gradients)
        kept = sum(_own_bytes(each) for each in self._leaves("weight"))
        backward = self.clock.peak_bytes(
            lambda: torch.autograd.grad(results, leaves, gradients, allow_unused=True)
        )
        return max(forward, incoming + max(0, backward - kept))


def _mark_nodes(results: Sequence[torch.Tensor], clock: Clock) -> list[Mark]:
    """The list that will hold a mark for the start and end of every autograd node that runs."""
    marks: list[Mark] = []

    def note(*_: Any) -> None:
        marks.append(clock.mark())

    for node in _list_autograd_nodes(results):
        node.register_prehook(note)
        node.register_hook(note)
    return marks


def _list_autograd_nodes(results: Sequence[torch.Tensor]) -> list[Any]:
    """Autograd nodes behind the results, without those that accumulate into leaves."""
    waiting = [each.grad_fn for each in results if each.grad_fn is not None]
    found: dict[Any, None] = dict.fromkeys(waiting)
    while waiting:
        for following, _ in waiting.pop().next_functions:
            if following is None or following in found or _is_leaf(following):
                continue
            found[following] = None
            waiting.append(following)
    return list(found)


def _is_leaf(node: Any) -> bool:
    return type(node).__name__ == "AccumulateGrad"


def _own_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
