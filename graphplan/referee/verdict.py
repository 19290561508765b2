"""Verdict: the rules that a plan breaks, each with its place and numbers."""

from __future__ import annotations

from collections import Counter

from graphplan.nouns.base import Noun
from graphplan.referee.rules import RULES

MAX_PER_RULE = 20
"""Violations of one rule that are told one by one; the rest is counted."""


class Violation(Noun, frozen=True, kw_only=True):
    """One broken rule: which, where, and the numbers that show it."""

    rule: str
    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule} at {self.place}: {self.message}"


class Verdict(Noun, frozen=True, kw_only=True):
    """All that the referee found; legal when nothing."""

    violations: tuple[Violation, ...]

    @property
    def is_legal(self) -> bool:
        """Whether no rule is broken."""
        return not self.violations

    def __str__(self) -> str:
        return "\n".join(map(str, self.violations)) or "legal"


class Findings:
    """Collects violations while the rules run, in the order in which they are found."""

    def __init__(self) -> None:
        self._found: list[Violation] = []
        self._counts: Counter[str] = Counter()

    def add(self, rule: str, place: str, message: str) -> None:
        """Note a broken rule."""
        assert rule in RULES
        self._counts[rule] += 1
        if self._counts[rule] <= MAX_PER_RULE:
            self._found.append(Violation(rule=rule, place=place, message=message))

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found so far."""
        return not self._found

    def extend(self, other: Findings) -> None:
        """Take over what another collection holds."""
        self._found += other._found
        self._counts += other._counts

    def conclude(self) -> Verdict:
        """The verdict; rules that are broken very often end in a count."""
        rest = [
            Violation(
                rule=rule,
                place="further places",
                message=f"{count - MAX_PER_RULE} more violations of this rule.",
            )
            for rule, count in self._counts.items()
            if count > MAX_PER_RULE
        ]
        return Verdict(violations=(*self._found, *rest))
