"""The planner: the only part that knows the order of the passes; `search` shows it on one page."""
