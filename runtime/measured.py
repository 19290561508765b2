"""The measured Timeline: the tasks of one step of all ranks, on one clock."""

from __future__ import annotations

from collections.abc import Sequence

from graphplan.nouns.timeline import Peak, Span, Timeline
from graphplan_runtime.messages.queues import Note


def make_timeline(
    notes_by_device: Sequence[Sequence[Note]], *, batch_size: int, peak_bytes: Sequence[int]
) -> Timeline:
    """Spans of all tasks; time 0 is when the first of them began to wait for its tensors."""
    zero_s = min((begin for notes in notes_by_device for _, begin, _, _ in notes), default=0.0)
    spans = [
        Span(str(task), device, start - zero_s, end - zero_s)
        for device, notes in enumerate(notes_by_device)
        for task, _, start, end in notes
    ]
    end_s = max((span.end_s for span in spans), default=0.0)
    return Timeline(
        source="measured",
        batch_size=batch_size,
        num_devices=len(notes_by_device),
        spans=tuple(sorted(spans, key=lambda span: (span.start_s, str(span.place)))),
        peaks=tuple(Peak(bytes=held, at_s=end_s) for held in peak_bytes),
    )
