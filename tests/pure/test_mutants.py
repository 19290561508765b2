"""The referee catches every broken plan: no mutant survives."""

from __future__ import annotations

from itertools import islice

import pytest

from graphplan.referee import check_plan
from graphplan.referee.rules import RULES
from tests.pure.legal import legal_plans
from tests.pure.mutants import OPERATORS, Operator

ELSEWHERE = {"device-groups"}
"""Rules that no plan can break: the nouns refuse such device groups."""


@pytest.mark.parametrize("name", legal_plans())
def test_legal_plans_are_legal(name: str) -> None:
    """The plans that the mutants are made from break no rule."""
    assert str(check_plan(legal_plans()[name])) == "legal"


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda each: each.name)
def test_no_mutant_survives(operator: Operator) -> None:
    """Every mutant of every legal plan is caught, by a rule that fits what was done to it."""
    named: set[str] = set()
    for name, plan in legal_plans().items():
        for mutant, deed in operator.make(plan):
            rules = {each.rule for each in check_plan(mutant).violations}
            assert rules & operator.rules, f"{name}: {deed} gives {sorted(rules)}"
            named |= rules
    assert named >= operator.rules, "a rule was never needed"


def test_enough_mutants() -> None:
    """There are at least 1,000 mutants, and operators for every rule."""
    mutants = (
        deed for each in OPERATORS for plan in legal_plans().values() for _, deed in each.make(plan)
    )
    assert len(list(islice(mutants, 1000))) == 1000
    assert set().union(*(each.rules for each in OPERATORS)) == RULES.keys() - ELSEWHERE
