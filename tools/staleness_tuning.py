"""tune_rate, fill_rows: the best learning rate inside its grid, then fresh seeds at that rate.

The grid has a factor of two. It is tried with `TUNING_SEEDS`; as long as the best rate is an end of
the grid, the grid grows there. The result is measured with `REPORT_SEEDS`, which the tuning never
saw. A run whose loss is not finite counts as infinite.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TUNING_SEEDS = tuple(range(100, 105))
REPORT_SEEDS = tuple(range(10))
MAX_GROWTH = 8

Measure = Callable[[Sequence[float], Sequence[int]], list[float]]
"""Rates and seeds, one pair for each run -> the loss of every run."""


@dataclass(frozen=True)
class Tuned:
    """Losses of the report seeds at the tuned rate."""

    rate: float
    is_inside: bool
    """Whether the best rate is no end of the grid."""
    grid: dict[str, float]
    """Mean loss of the tuning seeds by rate."""
    losses: list[float]

    def describe(self) -> dict[str, Any]:
        """What a row of a result file says of the tuning."""
        return {
            "rate": self.rate,
            "is_inside": self.is_inside,
            "mean": self.mean,
            "error": self.error,
            "losses": self.losses,
            "grid": self.grid,
        }

    @property
    def mean(self) -> float:
        """Mean over the report seeds."""
        return sum(self.losses) / len(self.losses)

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        count = len(self.losses)
        if not math.isfinite(self.mean):
            return math.inf
        square = sum((loss - self.mean) ** 2 for loss in self.losses)
        return math.sqrt(square / (count - 1) / count)


def fill_rows(
    path: Path,
    keys: Iterable[dict[str, Any]],
    measure: Callable[[dict[str, Any]], dict[str, Any]],
    *,
    head: dict[str, Any],
) -> None:
    """Measure the rows that a file does not hold yet; it is written after every row."""
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    for key in keys:
        if any(key.items() <= row.items() for row in rows):
            continue
        start = time.perf_counter()
        row = key | measure(key) | {"seconds": round(time.perf_counter() - start, 1)}
        rows.append(row)
        path.write_text(json.dumps(head | {"rows": rows}, indent=1) + "\n")
        print(
            f"{' '.join(map(str, key.values()))}: {row['mean']:.4g} ± {row['error']:.2g} at"
            f" {row['rate']:.4g} ({row['seconds']} s)",
            flush=True,
        )


def tune_rate(measure: Measure, rates: Sequence[float]) -> Tuned:
    """Try the grid, grow it where needed, and measure the best rate with fresh seeds."""
    means: dict[float, float] = {}
    waiting = sorted(rates)
    for _ in range(MAX_GROWTH):
        means |= _try_rates(measure, waiting)
        best = min(means, key=lambda rate: (means[rate], rate))
        if best == min(means):
            waiting = [best / 4, best / 2]
        elif best == max(means):
            waiting = [best * 2, best * 4]
        else:
            break
    count = len(REPORT_SEEDS)
    return Tuned(
        rate=best,
        is_inside=min(means) < best < max(means),
        grid={f"{rate:.6g}": means[rate] for rate in sorted(means)},
        losses=_make_finite(measure([best] * count, REPORT_SEEDS)),
    )


def _try_rates(measure: Measure, rates: Sequence[float]) -> dict[float, float]:
    """The mean loss of the tuning seeds at every rate, all in one go."""
    count = len(TUNING_SEEDS)
    losses = _make_finite(
        measure([rate for rate in rates for _ in TUNING_SEEDS], [*TUNING_SEEDS] * len(rates))
    )
    return {rate: sum(losses[i * count : (i + 1) * count]) / count for i, rate in enumerate(rates)}


def _make_finite(losses: Sequence[float]) -> list[float]:
    return [loss if math.isfinite(loss) else math.inf for loss in losses]
