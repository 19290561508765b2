"""The referee: judges plans from the nouns alone, sharing no code with what made them."""

from __future__ import annotations

from graphplan.referee.plan import check_plan
from graphplan.referee.program import check_program, check_schedule
from graphplan.referee.stages import check_stages
from graphplan.referee.verdict import Verdict, Violation

__all__ = [
    "Verdict",
    "Violation",
    "check_plan",
    "check_program",
    "check_schedule",
    "check_stages",
]
