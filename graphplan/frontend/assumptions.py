"""Assumptions: what a capture fixed or left out, said with the line of the user's code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import nn

from graphplan.frontend.attempt import Attempt
from graphplan.frontend.checks import passes_when
from graphplan.frontend.leaves import ModuleCall
from graphplan.frontend.watch import code_at
from graphplan.nouns.opgraph import Assumption


def list_assumptions(attempt: Attempt, module: nn.Module) -> list[Assumption]:
    """All that a user should know about a trace, each once."""
    found = [*_list_checks(attempt), *_list_decisions(attempt)]
    found += [*_list_checkpoints(attempt), *_list_opaque(attempt)]
    if not module.training:
        found.append(
            Assumption(
                kind="eval mode",
                text="the module is in eval mode and was captured so: no dropout, and batch norm"
                " with its stored statistics; call .train() in build() for training",
            )
        )
    return found


def _list_checks(attempt: Attempt) -> Iterator[Assumption]:
    decided = [
        each.place for each in attempt.watch.decisions if passes_when(each.place) is not None
    ]
    for place in dict.fromkeys([*attempt.watch.checks, *decided]):
        yield Assumption(
            kind="value check",
            text=f"`{code_at(place)}` reads values only to raise an error; it is left out",
            source=place,
        )


def _list_checkpoints(attempt: Attempt) -> Iterator[Assumption]:
    for place, times in Counter(attempt.watch.checkpoints).items():
        yield Assumption(
            kind="checkpoint",
            text=f"torch.utils.checkpoint is left out ({times} calls): the plan decides what is"
            " recomputed",
            source=place,
        )


def _list_decisions(attempt: Attempt) -> Iterator[Assumption]:
    seen: set[tuple[str | None, str]] = set()
    for decision in attempt.watch.decisions:
        if (decision.place, decision.result) in seen or passes_when(decision.place) is not None:
            continue
        seen.add((decision.place, decision.result))
        if decision.is_random:
            yield Assumption(
                kind="frozen random choice",
                text=f"`{decision.code}` draws at random in every step; it is frozen to the choice"
                f" of the example ({decision.result}); a probability of 0 (transformers:"
                " layerdrop=0.0) takes chance out of it",
                source=decision.place,
            )
        else:
            yield Assumption(
                kind="value-dependent branch",
                text=f"`{decision.code}` depends on the values of a tensor; it is frozen to the"
                f" outcome of the example ({decision.result})",
                source=decision.place,
            )


def _list_opaque(attempt: Attempt) -> Iterator[Assumption]:
    calls = [node for node in attempt.body.graph.nodes if isinstance(node.target, ModuleCall)]
    found = Counter(
        (type(node.target.module).__name__, node.target.leaf.reason, node.target.leaf.place)
        for node in calls
    )
    for (name, reason, place), times in found.items():
        yield Assumption(
            kind="opaque",
            text=f"{name} cannot be traced and is kept as one op ({times} calls): {reason}",
            source=place,
        )
