"""Draw the results of the staleness experiments and print them as the tables of docs/staleness.md.

    python tools/staleness_figures.py docs/images

The folder holds staleness_convergence.json and staleness_delays.json; the SVG figures go there too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot, rc_context

Row = dict[str, Any]
STYLE: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "graphplan", "font.size": 8}
COLOURS = {
    "flush": "#5f6b7a",
    "naive": "#c2410c",
    "stash": "#2f6fe0",
    "predict": "#0b8074",
    "spectrain1": "#7c5ce0",
    "spectrain2": "#b39ddb",
    "flush, m=4": "#8d9aab",
    "2bw, m=4": "#a2620a",
    "control": "#5f6b7a",
    "pipedream": "#2f6fe0",
    "rpd": "#7fa6ea",
    "local 2": "#f2b8a0",
    "local 5": "#e07b50",
    "local 30": "#c2410c",
}


def list_values(rows: Sequence[Row], key: str) -> list[Any]:
    """The different values of a column, in the order of their first."""
    return list(dict.fromkeys(row[key] for row in rows))


@rc_context(STYLE)
def draw_convergence(rows: Sequence[Row], path: Path) -> None:
    """Final losses of every method, one panel for each task and optimizer."""
    tasks, optimizers = list_values(rows, "task"), list_values(rows, "optimizer")
    figure, panels = pyplot.subplots(
        len(tasks), len(optimizers), figsize=(9.5, 2.2 * len(tasks)), squeeze=False
    )
    for i, task in enumerate(tasks):
        for j, optimizer in enumerate(optimizers):
            panel = panels[i][j]
            shown = [r for r in rows if (r["task"], r["optimizer"]) == (task, optimizer)]
            draw_bars(panel, shown)
            panel.set_title(f"{task}, {optimizer}", fontsize=8)
    save_figure(figure, path)


def draw_bars(panel: Any, rows: Sequence[Row]) -> None:
    """Means with standard errors, and a black mark at the median."""
    for k, row in enumerate(rows):
        colour = COLOURS[row["method"]]
        panel.bar(k, row["mean"], yerr=row["error"], color=colour, capsize=2, width=0.7)
        middle = statistics.median(row["losses"])
        panel.hlines(middle, k - 0.35, k + 0.35, color="black", linewidth=1)
    panel.set_xticks(range(len(rows)), [row["method"] for row in rows], rotation=40, ha="right")
    panel.set_ylim(bottom=0)


@rc_context(STYLE)
def draw_delays(rows: Sequence[Row], path: Path) -> None:
    """Excess loss by the number of stages, one panel for each problem."""
    problems = list_values(rows, "problem")
    figure, panels = pyplot.subplots(1, len(problems), figsize=(9.5, 2.8), squeeze=False)
    for panel, problem in zip(panels[0], problems, strict=True):
        for method in list_values(rows, "method"):
            shown = [r for r in rows if (r["problem"], r["method"]) == (problem, method)]
            panel.errorbar(
                [row["stages"] for row in shown],
                [row["mean"] for row in shown],
                yerr=[row["error"] for row in shown],
                color=COLOURS[method],
                marker="o",
                markersize=3,
                capsize=2,
                label=method,
            )
        panel.set_xscale("log", base=2)
        ticks = sorted({row["stages"] for row in rows if row["problem"] == problem})
        panel.set_xticks(ticks, [str(each) for each in ticks])
        panel.set_xlabel("stages")
        panel.set_title(problem, fontsize=8)
    panels[0][0].set_ylabel("excess loss")
    panels[0][-1].legend(fontsize=7, frameon=False)
    save_figure(figure, path)


def save_figure(figure: Any, path: Path) -> None:
    """Write an SVG without a date, so that equal results are equal files."""
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    print(f"written to {path} ({path.stat().st_size:,} bytes)")


def list_convergence(rows: Sequence[Row]) -> Iterator[str]:
    """One line for each task and optimizer: mean ± standard error (median) of every method."""
    methods = list_values(rows, "method")
    yield "| task, optimizer | " + " | ".join(methods) + " |"
    yield "|---" * (len(methods) + 1) + "|"
    for task in list_values(rows, "task"):
        for optimizer in list_values(rows, "optimizer"):
            found = {
                r["method"]: r for r in rows if (r["task"], r["optimizer"]) == (task, optimizer)
            }
            cells = [format_row(found[m]) if m in found else "" for m in methods]
            yield f"| {task}, {optimizer} | " + " | ".join(cells) + " |"


def list_delays(rows: Sequence[Row]) -> Iterator[str]:
    """One line for each problem and number of stages."""
    methods = list_values(rows, "method")
    yield "| problem | S | " + " | ".join(methods) + " |"
    yield "|---" * (len(methods) + 2) + "|"
    for problem in list_values(rows, "problem"):
        for stages in sorted({r["stages"] for r in rows if r["problem"] == problem}):
            found = {
                r["method"]: r for r in rows if (r["problem"], r["stages"]) == (problem, stages)
            }
            cells = [format_row(found[m]) if m in found else "" for m in methods]
            yield f"| {problem} | {stages} | " + " | ".join(cells) + " |"


def format_row(row: Row) -> str:
    """`0.222 ± 0.041 (0.201)`, marked when the best rate is an end of the grid."""
    middle = statistics.median(row["losses"])
    text = f"{row['mean']:.3g} ± {row['error']:.1g} ({middle:.3g})"
    return text if row["is_inside"] else f"{text} edge"


def main() -> int:
    """Draw what is there and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    rows = json.loads((folder / "staleness_convergence.json").read_text())["rows"]
    draw_convergence(rows, folder / "staleness_convergence.svg")
    print("\n".join(list_convergence(rows)))
    rows = json.loads((folder / "staleness_delays.json").read_text())["rows"]
    draw_delays(rows, folder / "staleness_delays.svg")
    print("\n".join(list_delays(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
