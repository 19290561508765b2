"""Max-load, the laboratory: its best solvers, the referee of its answers, a second program."""
