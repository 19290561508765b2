"""render_dot: the stage graph in Graphviz's language."""

from __future__ import annotations

from graphplan.nouns.plan import Plan
from graphplan.report.units import clean_name, format_bytes, format_devices, format_seconds


def render_dot(plan: Plan) -> str:
    """A `digraph`; stages carry their devices and times, edges the bytes of one micro-batch."""
    lines = [
        f"digraph {_quote(plan.model.name)} {{",
        "  rankdir=LR;",
        '  node [shape=box, style=rounded, fontname="Helvetica"];',
        '  edge [fontname="Helvetica", fontsize=10];',
    ]
    pairs = zip(plan.stages.stages, plan.prices.stages, strict=False)  # The referee compares them.
    for s, (stage, price) in enumerate(pairs):
        named = plan.labels[s].modules if s < len(plan.labels) else ()
        title = ", ".join(named) or f"{len(stage.ops)} ops"
        times = f"{format_seconds(price.forward_s)} + {format_seconds(price.backward_s)}"
        text = "\n".join((f"{s}: {title}", format_devices(stage.devices), times))
        lines.append(f"  s{s} [label={_quote(text)}];")
    for (src, dst), edges in sorted(plan.stages.edges_by_ends.items()):
        size = plan.stages.stages[src].micro_batch_size
        total = sum(edge.spec.num_bytes(size) for edge in edges)
        lines.append(f"  s{src} -> s{dst} [label={_quote(format_bytes(total))}];")
    return "\n".join((*lines, "}", ""))


def _quote(text: str) -> str:
    """A quoted string; line breaks become centred lines."""
    cleaned = "\\n".join(clean_name(line) for line in text.replace("\\", "\\\\").split("\n"))
    return '"' + cleaned.replace('"', '\\"') + '"'
