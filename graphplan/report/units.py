"""Numbers and names as people read them: 12.3 ms, 71.5 GB, GPU 0-3."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

_SIZES = ("B", "KB", "MB", "GB", "TB", "PB", "EB")
_CHANNEL = re.compile(r"([dn])([0-9]+)(>>?)(?:d([0-9]+))?")
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def format_seconds(seconds: float, *, digits: int = 4) -> str:
    """`412.3 ms`; below ten seconds the unit is the largest that gives at least 1."""
    if not math.isfinite(seconds):
        return "∞"
    if seconds == 0:
        return "0 ms"
    scale, unit = next((pair for pair in _TIMES if abs(seconds) >= pair[0]), _TIMES[-1])
    if unit == "s" and abs(seconds) < 10:
        scale, unit = 1e-3, "ms"
    return f"{_round(seconds / scale, digits)} {unit}"


def format_ms(seconds: float) -> str:
    """Milliseconds without the unit, for columns that carry it in their head."""
    return _round(seconds * 1e3, 4)


def format_bytes(num_bytes: float) -> str:
    """`71.5 GB`; units are powers of 1024, as in `--memory 16GB`."""
    power = 0
    value = float(min(num_bytes, 2**200))
    while abs(value) >= 1023.95 and power < len(_SIZES) - 1:
        value /= 1024
        power += 1
    return f"{int(value)} B" if power == 0 else f"{_round(value, 3)} {_SIZES[power]}"


def format_share(share: float) -> str:
    """`12.4%`."""
    return f"{share * 100:.1f}%" if math.isfinite(share * 100) else "∞"


def format_rate(per_s: float) -> str:
    """`1,242` or `3.71`, for samples a second."""
    return f"{per_s:,.0f}" if abs(per_s) >= 1000 else _round(per_s, 4)


def format_count(count: int) -> str:
    """`1.21 B`, `350 M`, `12,345`: counts of parameters."""
    for scale, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if count >= scale:
            return f"{_round(count / scale, 3)} {unit}"
    return f"{count:,}"


def format_ranges(numbers: Iterable[int]) -> str:
    """`0-3, 6`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def format_devices(devices: Sequence[int]) -> str:
    """`GPU 0-3`."""
    return f"GPU {format_ranges(devices)}"


def format_channel(name: str) -> str:
    """`GPU 0 > GPU 1` for `d0>d1`, `GPU 0 out` for `d0>`, `node 0 net` for `n0>>`."""
    match = _CHANNEL.fullmatch(name)
    if match is None:
        return clean_name(name)
    sender = f"{'GPU' if match[1] == 'd' else 'node'} {match[2]}"
    if match[4]:
        return f"{sender} > GPU {match[4]}"
    return f"{sender} {'net' if match[3] == '>>' else 'out'}"


def choose_ticks(total: float, most: int) -> tuple[float, ...]:
    """At most so many round numbers from 0 to `total`: steps of 1, 2 or 5 times a power of ten."""
    if not 0 < total < math.inf:
        return (0.0,)
    least = total / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(least))
    step = next((each * power for each in (1, 2, 5) if each * power >= least), 10 * power)
    return tuple(step * i for i in range(int(total / step + 1e-9) + 1))


def clean_name(name: str) -> str:
    """A name from a file, without characters that could steer a terminal."""
    return "".join(each if each.isprintable() else "�" for each in name)


def _round(value: float, digits: int) -> str:
    """`value` with so many significant digits, at most three of them after the point."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return "∞"
    whole = math.floor(math.log10(abs(value))) + 1
    return f"{value:,.{min(3, max(0, digits - max(1, whole)))}f}"
