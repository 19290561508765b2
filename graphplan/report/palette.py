"""Colours of tasks, the same in every picture: white text on them has a contrast of 4.5 or more."""

from __future__ import annotations

KIND_COLOURS = {
    "F": "#2f6fe0",
    "B": "#0b8074",
    "I": "#0b8074",
    "W": "#a2620a",
    "R": "#7c5ce0",
    "U": "#5f6b7a",
}
TRANSFER_COLOURS = {"F": "#7fa6ea", "B": "#63b3aa", "R": "#b3a1ee"}
IDLE_COLOURS = ("#b7c2d0", "#8d9aab", "#cfd7e1")
"""Warm-up, waiting, drain."""
