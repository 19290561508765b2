"""make_spans: the times of a run as spans ordered by start."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphplan.nouns.timeline import Span
from graphplan.simulate.compiled import KINDS, Compiled, Ints, Times
from graphplan.simulate.posting import name_message


def make_spans(compiled: Compiled, times: Times) -> tuple[Span, ...]:
    """One span for each task and each message; at equal starts tasks first, then by place."""
    tasks, messages, wires = compiled.tasks, compiled.messages, compiled.wires
    starts = np.concatenate((times.task_start, times.message_start))
    ends = np.concatenate((times.task_end, times.message_start + messages.seconds))
    order = np.argsort(starts, kind="stable")
    task_heads = [
        f"{s}{kind}" for s in range(int(tasks.stage.max(initial=-1)) + 1) for kind in KINDS
    ]
    wire_heads = [name_message(wires, wire, 0)[:-1] for wire in range(len(wires.src))]
    names = _join(task_heads, tasks.stage * len(KINDS) + tasks.kind, tasks.micro_batch)
    names += _join(wire_heads, messages.wire, messages.micro_batch)
    places: list[int | str] = [*tasks.device.tolist()]
    places += [compiled.channels[channel] for channel in messages.channel.tolist()]
    ordered = order.tolist()
    return tuple(
        map(
            Span,
            [names[each] for each in ordered],
            [places[each] for each in ordered],
            starts[order].tolist(),
            ends[order].tolist(),
        )
    )


def _join(heads: Sequence[str], head: Ints, micro_batch: Ints) -> list[str]:
    """Texts such as `2F` + `0`; both halves are made once and shared."""
    numbers = list(map(str, range(int(micro_batch.max(initial=-1)) + 1)))
    pairs = zip(head.tolist(), micro_batch.tolist(), strict=True)
    return [heads[one] + numbers[two] for one, two in pairs]
