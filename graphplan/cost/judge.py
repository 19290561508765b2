"""Judging predicted times against measured ones: by op, by op kind, and for whole steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy

from graphplan.cost.features import Floats
from graphplan.cost.lessons import FLOOR_S, Lesson
from graphplan.nouns.learned import KindScore, Part, Score


@dataclasses.dataclass(frozen=True)
class Guess:
    """What a predictor says of one lesson."""

    seconds: Floats
    """[size, op, pass], ops alone."""
    steps_s: Floats
    """[size]: whole steps."""
    deviation: Floats | None = None
    """[size, op, pass]: standard deviation of the log, when it is told."""


Guesses = Sequence[Guess]


def judge_part(
    lessons: Sequence[Lesson], guesses_by_predictor: Mapping[str, Guesses], *, chosen: str | None
) -> Part:
    """How all predictors do on a part of the data, and how often the chosen one's doubt holds."""
    errors = {
        name: [_find_errors(lesson, guess) for lesson, guess in zip(lessons, guesses, strict=True)]
        for name, guesses in guesses_by_predictor.items()
    }
    return Part(
        models=tuple(dict.fromkeys(lesson.model for lesson in lessons)),
        num_units=sum(lesson.measured_s.shape[0] * lesson.num_units for lesson in lessons),
        score_by_predictor={
            name: _score(lessons, guesses_by_predictor[name], found)
            for name, found in errors.items()
        },
        kinds=_judge_kinds(lessons, errors),
        within=_measure_within(lessons, guesses_by_predictor[chosen]) if chosen else None,
    )


def _find_errors(lesson: Lesson, guess: Guess) -> Floats:
    """[size, unit]: relative error of forward and backward together."""
    measured = lesson.measured_s.sum(2)
    predicted = lesson.sum_units(guess.seconds).sum(2)
    return numpy.asarray(numpy.abs(predicted - measured) / numpy.maximum(measured, FLOOR_S))


def _score(lessons: Sequence[Lesson], guesses: Guesses, errors: Sequence[Floats]) -> Score:
    steps = [
        numpy.abs(guess.steps_s / (lesson.sums_s * lesson.ratios) - 1)
        for lesson, guess in zip(lessons, guesses, strict=True)
        if len(lesson.ratios)
    ]
    whole = numpy.concatenate(steps) if steps else numpy.zeros(1)
    return Score(
        op_error=_median(errors),
        step_error=round(float(whole.mean()), 4),
        worst_step_error=round(float(whole.max()), 4),
    )


def _judge_kinds(
    lessons: Sequence[Lesson], errors: Mapping[str, Sequence[Floats]]
) -> tuple[KindScore, ...]:
    """Errors by op kind, the kind with most units first."""
    places: dict[str, list[tuple[int, int]]] = {}
    for i, lesson in enumerate(lessons):
        for unit, kind in enumerate(lesson.unit_kinds):
            places.setdefault(kind, []).append((i, unit))
    scores = [
        KindScore(
            kind=kind,
            num_units=sum(lessons[i].measured_s.shape[0] for i, _ in where),
            op_error_by_predictor={
                name: _median([found[i][:, unit] for i, unit in where])
                for name, found in errors.items()
            },
        )
        for kind, where in places.items()
    ]
    return tuple(sorted(scores, key=lambda score: (-score.num_units, score.kind)))


def _measure_within(lessons: Sequence[Lesson], guesses: Guesses) -> float | None:
    """Share of units whose log error is at most the deviation that was told."""
    ratios = [
        find_unit_ratios(lesson, guess)
        for lesson, guess in zip(lessons, guesses, strict=True)
        if guess.deviation is not None
    ]
    return round(float((numpy.concatenate(ratios) <= 1).mean()), 4) if ratios else None


def find_unit_ratios(lesson: Lesson, guess: Guess) -> Floats:
    """Log error over told deviation, of every unit at every size."""
    assert guess.deviation is not None
    predicted = lesson.sum_units(guess.seconds).sum(2) + FLOOR_S
    told = lesson.sum_units(guess.seconds * guess.deviation).sum(2) / predicted
    error = numpy.log(predicted / (lesson.measured_s.sum(2) + FLOOR_S))
    return numpy.asarray(numpy.abs(error) / numpy.maximum(told, 1e-6)).ravel()


def _median(errors: Sequence[Floats]) -> float:
    joined = numpy.concatenate([each.ravel() for each in errors])
    return round(float(numpy.median(joined)), 4) if len(joined) else 0.0
