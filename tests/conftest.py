"""Settings of all tests: Hypothesis without deadlines, and with the same examples every time."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("graphplan", deadline=None, derandomize=True)
settings.load_profile("graphplan")
