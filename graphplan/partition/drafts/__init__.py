"""Drafts: plans in the making, appraised, moved about and polished by the `graph` planner."""
