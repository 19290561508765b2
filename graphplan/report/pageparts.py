"""The parts of the page that need no script: cards, comparison, limits, table, provenance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphplan.nouns.plan import Plan
from graphplan.report.certainty import describe_certainty
from graphplan.report.figures import BASELINE_NAMES, COST_SOURCES, explain_missing
from graphplan.report.limits import Finding, Topic
from graphplan.report.markup import draw_element, write_text
from graphplan.report.palette import IDLE_COLOURS, KIND_COLOURS
from graphplan.report.spans import KIND_NAMES
from graphplan.report.stagerows import StageRow
from graphplan.report.units import (
    format_bytes,
    format_count,
    format_devices,
    format_ms,
    format_rate,
    format_seconds,
    format_share,
)
from graphplan.report.usage import Usage

TOPIC_NAMES: dict[Topic, str] = {
    "compute": "Compute",
    "update": "Updates",
    "idle": "Idle time",
    "transfer": "Transfers",
    "memory": "Memory",
    "bound": "Bound",
    "batch": "Batch",
    "costs": "Costs",
}


def write_title(plan: Plan) -> str:
    """Model, cluster and what is trained how, as chips."""
    counts: dict[str, int] = {}
    for device in plan.cluster.devices:
        counts[device.type.name] = counts.get(device.type.name, 0) + 1
    park = ", ".join(f"{count} x {name}" for name, count in counts.items())
    sizes = sorted({stage.micro_batch_size for stage in plan.stages.stages})
    chips = [
        f"{park} ({plan.cluster.name})",
        f"batch {plan.training.batch_size:,}",
        f"micro-batch {', '.join(map(str, sizes))}",
        f"{'mixed ' if plan.training.mixed else ''}{plan.training.precision}",
        plan.training.optimizer,
        f"schedule {plan.provenance.schedule}",
        f"weights {plan.policy.name}",
    ]
    return draw_element("h1", write_text(plan.model.name)) + draw_element(
        "ul", *(draw_element("li", write_text(chip)) for chip in chips), class_="chips"
    )


def write_cards(plan: Plan, stages: Sequence[StageRow]) -> str:
    """The five figures that everyone asks for first."""
    predicted = plan.prediction
    fullest = max(stages, key=lambda row: row.peak_bytes / max(1, row.limit_bytes), default=None)
    share = fullest.peak_bytes / max(1, fullest.limit_bytes) if fullest else 0.0
    memory = (
        f"{format_bytes(fullest.peak_bytes)} of {format_bytes(fullest.limit_bytes)} on"
        f" {format_devices(fullest.devices)}"
        if fullest
        else ""
    )
    cards = (
        ("Step time", format_seconds(predicted.step_s), "predicted by the simulator"),
        (
            "Throughput",
            f"{format_rate(predicted.samples_per_s)}",
            f"samples a second, {plan.training.batch_size:,} a step",
        ),
        ("Bubble", format_share(predicted.bubble), "mean idle share of the devices"),
        (
            "Gap",
            f"≤ {format_share(plan.gap)}",
            f"above the lower bound of {format_seconds(plan.bound.step_s)}",
        ),
        ("Peak memory", format_share(share), memory),
    )
    return "".join(
        draw_element(
            "article",
            draw_element("h3", write_text(name)),
            draw_element("p", write_text(value), class_="value"),
            draw_element("p", write_text(note), class_="note"),
            class_="figure",
        )
        for name, value, note in cards
    )


def write_comparison(plan: Plan) -> str:
    """Bars of step times: the bound, this plan, and what other planners reach."""
    step_s = plan.prediction.step_s
    entries = [
        ("Lower bound", plan.bound.step_s, "bound", "no plan can be faster"),
        ("This plan", step_s, "own", ""),
    ]
    for name in (*BASELINE_NAMES, *sorted(set(plan.baselines) - set(BASELINE_NAMES))):
        title = BASELINE_NAMES.get(name, name)
        title = title[0].upper() + title[1:] if title else "(no name)"
        other_s = plan.baselines.get(name)
        if other_s is None:
            entries.append((title, 0.0, "missing", explain_missing(plan)))
        else:
            faster = other_s >= step_s
            ratio = max(other_s, step_s) / (min(other_s, step_s) or 1.0)
            verdict = f"this plan is {ratio:.2f}x {'faster' if faster else 'slower'}"
            entries.append((title, other_s, "other", verdict))
    longest = max((seconds for _, seconds, _, _ in entries), default=0.0)
    return draw_element(
        "ul", *(_write_bar(*entry, longest=longest) for entry in entries), class_="bars"
    )


def _write_bar(name: str, seconds: float, kind: str, note: str, *, longest: float) -> str:
    value = format_seconds(seconds) if kind != "missing" else "-"
    share = seconds / longest if longest else 0.0
    return draw_element(
        "li",
        draw_element("span", write_text(name), class_="bar-name"),
        draw_element("span", write_text(value), class_="bar-value"),
        write_meter(share, kind),
        draw_element("span", write_text(note), class_="bar-note"),
    )


def write_split(usage: Usage) -> str:
    """Where the time of a mean device goes: one bar, cut by kind of task and reason of idling."""
    num = max(1, len(usage.devices))
    total_s = max(usage.makespan_s, 1e-30)
    parts = [
        (KIND_NAMES[kind], sum(use.busy_s_by_kind.get(kind, 0.0) for use in usage.devices), colour)
        for kind, colour in KIND_COLOURS.items()
    ] + [
        ("warm-up", sum(use.warmup_s for use in usage.devices), IDLE_COLOURS[0]),
        ("waiting", sum(use.waiting_s for use in usage.devices), IDLE_COLOURS[1]),
        ("drain", sum(use.drain_s for use in usage.devices), IDLE_COLOURS[2]),
    ]
    shares = [(name, seconds / num / total_s, colour) for name, seconds, colour in parts if seconds]
    boxes, entries, x = [], [], 0.0
    for name, share, colour in shares:
        boxes.append(draw_element("rect", x=x * 100, y=0, width=share * 100, height=8, fill=colour))
        swatch = draw_element(
            "svg",
            draw_element("rect", width=10, height=10, fill=colour),
            viewBox="0 0 10 10",
            aria_hidden="true",
        )
        entries.append(draw_element("span", swatch, write_text(f"{name} {format_share(share)}")))
        x += share
    bar = draw_element(
        "svg",
        *boxes,
        class_="meter split",
        viewBox="0 0 100 8",
        preserveAspectRatio="none",
        aria_hidden="true",
    )
    return bar + draw_element("div", *entries, class_="legend")


def write_meter(share: float, kind: str) -> str:
    """A bar as SVG: no style attribute, so that a strict content policy can hold."""
    filled = max(0.0, min(1.0, share)) * 100
    return draw_element(
        "svg",
        draw_element("rect", class_="meter-track", x=0, y=0, width=100, height=8, rx=0),
        draw_element("rect", class_=f"meter-fill {kind}", x=0, y=0, width=filled, height=8, rx=0),
        class_="meter",
        viewBox="0 0 100 8",
        preserveAspectRatio="none",
        aria_hidden="true",
    )


def write_findings(findings: Iterable[Finding]) -> str:
    """What limits the plan, with a bar for each share."""
    return draw_element("ul", *map(_write_finding, findings), class_="findings")


def _write_finding(finding: Finding) -> str:
    tight = " tight" if finding.topic == "memory" and (finding.share or 0) > 0.9 else ""
    meter = "" if finding.share is None else write_meter(finding.share, finding.topic + tight)
    link = "" if finding.stage is None else str(finding.stage)
    return draw_element(
        "li",
        draw_element(
            "span", write_text(TOPIC_NAMES[finding.topic]), class_=f"topic {finding.topic}"
        ),
        draw_element("strong", write_text(finding.title)),
        draw_element("p", write_text(finding.text)),
        meter,
        data_stage=link,
    )


COLUMNS = (
    ("Stage", "number"),
    ("Modules", "text"),
    ("Ops", "number"),
    ("Parameters", "number"),
    ("Devices", "number"),
    ("Replicas", "number"),
    ("Micro-batch", "number"),
    ("Forward ms", "number"),
    ("Backward ms", "number"),
    ("In flight", "number"),
    ("Memory of limit", "number"),
)


def write_table(stages: Sequence[StageRow]) -> str:
    """The table of stages; a script makes its heads sort."""
    heads = (
        draw_element(
            "th",
            draw_element("button", write_text(name), type="button", class_="sort"),
            scope="col",
            class_=kind,
        )
        for name, kind in COLUMNS
    )
    body = "".join(_write_row(row) for row in stages)
    return draw_element(
        "table",
        draw_element("thead", draw_element("tr", *heads)),
        draw_element("tbody", body),
        id="stage-table",
    )


def _write_row(row: StageRow) -> str:
    share = row.peak_bytes / max(1, row.limit_bytes)
    parameters = "-" if row.num_parameters is None else format_count(row.num_parameters)
    cells: tuple[tuple[str, float | str], ...] = (
        (str(row.stage), row.stage),
        (row.title, row.title),
        (f"{row.num_ops:,}", row.num_ops),
        (parameters, row.num_parameters or 0),
        (format_devices(row.devices), row.devices[0]),
        (str(len(row.devices)), len(row.devices)),
        (f"{row.num_micro_batches:,} x {row.micro_batch_size:,}", row.micro_batch_size),
        (format_ms(row.forward_s), row.forward_s),
        (format_ms(row.backward_s) + (" (recomputes)" if row.recompute else ""), row.backward_s),
        (str(row.in_flight), row.in_flight),
        (f"{format_bytes(row.peak_bytes)} ({format_share(share)})", share),
    )
    tight = "tight" if share > 0.9 else ""
    parts = [
        draw_element(
            "td",
            write_text(text),
            class_=f"{kind} {tight if name == 'Memory of limit' else ''}".strip(),
            data_value=f"{value:.9g}" if isinstance(value, float) else value,
        )
        for (text, value), (name, kind) in zip(cells, COLUMNS, strict=True)
    ]
    return draw_element("tr", *parts, data_stage=row.stage, tabindex=0)


def write_provenance(plan: Plan) -> str:
    """How the plan and its costs came about."""
    made = plan.provenance
    lines = {
        "Costs": ". ".join((COST_SOURCES.get(made.costs, made.costs), *describe_certainty(plan))),
        "Planner": made.planner,
        "Schedule": made.schedule,
        "Weight policy": plan.policy.name,
        "Bound": plan.bound.proof,
        "Seed": str(made.seed),
        "Model": f"{plan.model.name}, {len(plan.model.ops):,} ops, fingerprint"
        f" {plan.model.fingerprint}",
        "Cluster": f"{plan.cluster.name}: {len(plan.cluster.devices)} devices in"
        f" {len(plan.cluster.nodes)} nodes, {format_share(plan.cluster.usable_memory)} of the"
        " memory usable",
        "Made by": f"graphplan {made.graphplan}",
    } | {f"--{name.replace('_', '-')}": value for name, value in sorted(made.options.items())}
    return draw_element(
        "dl",
        *(
            draw_element("dt", write_text(name)) + draw_element("dd", write_text(value))
            for name, value in lines.items()
        ),
    )
