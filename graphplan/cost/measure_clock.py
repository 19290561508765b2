"""Clocks: the one seam between measuring and the device, for CPUs and for accelerators.

A *mark* is a point in the device's stream of work. On a CPU it is a reading of the clock; on an
accelerator an event in its queue, whose time is known after `finish`.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch

from graphplan.cost.hardware import name_device
from graphplan.errors import InvalidOption

Mark = Any
FLUSH_BYTES = 512 << 20
"""More than the last cache of any device holds."""
WARM_S = 0.5
NUM_LAUNCHES = 200


class Clock(Protocol):
    """What measuring needs to know of a device."""

    device: torch.device
    name: str
    """Of the device, as torch or the operating system calls it."""

    def mark(self) -> Mark:
        """The present point of the device's work."""

    def finish(self) -> None:
        """Wait until the device has done all its work."""

    def seconds(self, start: Mark, end: Mark) -> float:
        """Time between two marks, after `finish`."""

    def settle(self) -> None:
        """Bring caches and queue into the state of a run, just before a mark."""

    def free_bytes(self) -> int:
        """Memory that can still be allocated."""

    def peak_bytes(self, run: Callable[[], object]) -> int:
        """Most memory that `run` holds at once beyond what was held before."""


def find_clock(device: str) -> Clock:
    """The clock of a device that is there."""
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise InvalidOption(
            f"{device!r} is no device.", remedy="Use cpu, cuda or cuda:1."
        ) from error
    if wanted.type == "cpu":
        return CpuClock()
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != wanted.type:
        there = accelerator.type if accelerator else "cpu"
        raise InvalidOption(
            f"There is no {wanted.type} device here.",
            remedy=f"Measure with --device {there}, or estimate with --estimate a100-80gb.",
        )
    return AcceleratorClock(wanted)


def describe_environment(clock: Clock) -> str:
    """All that timings depend on besides the call: part of the cache's key."""
    parts = [clock.name, f"torch {torch.__version__}"]
    if clock.device.type == "cpu":
        parts.append(f"{torch.get_num_threads()} threads")
    else:
        parts.append(f"matmul {torch.get_float32_matmul_precision()}")
        parts.append(f"cudnn benchmark {torch.backends.cudnn.benchmark}")
    return ", ".join(parts)


def name_device_type(clock: Clock) -> str:
    """The hardware profile of the device, else its own name."""
    if clock.device.type == "cpu":
        return "cpu"
    return name_device(clock.name) or clock.name


class CpuClock:
    """Work on a CPU is done when the call returns.

    With one thread it reads the time that this thread was running, so that other programs do not
    count; with several, the time on the wall.
    """

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.name = _read_cpu_name()
        self._read = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter

    def mark(self) -> float:
        """A reading of the clock."""
        return self._read()

    def finish(self) -> None:
        """Nothing is pending."""

    def settle(self) -> None:
        """Samples follow each other as calls do."""

    def seconds(self, start: float, end: float) -> float:
        """Difference of two readings."""
        return end - start

    def free_bytes(self) -> int:
        """Memory that the system can give; all of it where it does not say."""
        with contextlib.suppress(OSError, ValueError):
            for line in Path("/proc/meminfo").read_text().splitlines():
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
        return 1 << 62

    def peak_bytes(self, run: Callable[[], object]) -> int:
        """Highest sum of the allocations that the profiler reports, scratch of kernels included."""
        with _quiet_stderr(), torch.autograd.profiler.profile(profile_memory=True) as profile:
            result = run()
        held = peak = 0
        events = [e for e in profile.kineto_results.events() if e.name() == "[memory]"]
        for event in sorted(events, key=lambda e: e.start_ns()):
            held += event.nbytes()
            peak = max(peak, held)
        del result
        return peak


class AcceleratorClock:
    """Work is queued; events in the queue carry the times."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.index is not None:
            torch.accelerator.set_device_index(device.index)
        module = torch.get_device_module(device)
        self.name = (
            str(module.get_device_name(device))
            if hasattr(module, "get_device_name")
            else device.type
        )
        self._module = module
        self._filler: torch.Tensor | None = None

    def mark(self) -> torch.Event:
        """An event behind the work queued so far."""
        event = torch.Event(self.device, enable_timing=True)
        event.record()
        return event

    def settle(self) -> None:
        """Overwrite the cache; while the device does, the host queues what is to be timed, so that
        kernels are timed and not their launches."""
        if self._filler is None:
            num_bytes = min(FLUSH_BYTES, self.free_bytes() // 8)
            self._filler = torch.empty(num_bytes, dtype=torch.int8, device=self.device)
        self._filler.zero_()

    def warm_up(self, seconds: float = WARM_S) -> None:
        """Products for a while: clocks rise, and fall again to what they can sustain."""
        matrix = torch.ones(2048, 2048, device=self.device)
        start = time.monotonic()
        while time.monotonic() - start < seconds:
            for _ in range(20):
                torch.mm(matrix, matrix)
            self.finish()

    def launch_time(self) -> float:
        """Seconds that the host takes to queue a kernel."""
        tiny = torch.zeros(1, device=self.device)
        self.finish()
        start = time.perf_counter()
        for _ in range(NUM_LAUNCHES):
            tiny.add_(1)
        spent = time.perf_counter() - start
        self.finish()
        return spent / NUM_LAUNCHES

    def finish(self) -> None:
        """Wait for the queue."""
        torch.accelerator.synchronize(self.device)

    def seconds(self, start: torch.Event, end: torch.Event) -> float:
        """Device time between two events."""
        return float(start.elapsed_time(end)) / 1e3

    def free_bytes(self) -> int:
        """What the driver can give and what torch's allocator holds unused."""
        unused = self._module.memory_reserved(self.device) - self._module.memory_allocated(
            self.device
        )
        return int(self._module.mem_get_info(self.device)[0] + unused)

    def peak_bytes(self, run: Callable[[], object]) -> int:
        """By the allocator's own counter."""
        self.finish()
        self._module.reset_peak_memory_stats(self.device)
        before = self._module.memory_allocated(self.device)
        result = run()
        self.finish()
        peak = int(self._module.max_memory_allocated(self.device) - before)
        del result
        return peak


def _read_cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Drop what the profiler's C++ side writes at every start; Python's stderr is flushed first."""
    sys.stderr.flush()
    kept = os.dup(2)
    sink = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(sink, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(sink)
        os.close(kept)
