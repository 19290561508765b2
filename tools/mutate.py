"""Mutations of files for fuzzing: of their bytes, of their lines, and of their JSON structure."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

Mutation = Callable[[random.Random, bytes], bytes]

INTERESTING: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    7,
    1000,
    2**31,
    2**53,
    2**53 + 1,
    2**63,
    2**64,
    10**40,
    -(2**63),
    0.0,
    -0.0,
    -1.5,
    1e-300,
    1e300,
    -1e300,
    0.5,
    "",
    "b",
    "-b",
    "12*b+1",
    "99999999999999999999*b",
    "0F0",
    "0>1F0",
    "\x1b[31mred",
    "</script><script>alert(1)</script>",
    "x" * 5000,
    "\u2028\ud83d\ude00",
    [],
    {},
    [[]],
    [0, 1],
    {"x": 1},
)
NUMBERS = (b"0", b"-1", b"1e308", b"1e999", b"NaN", b"Infinity", b"9" * 30, b"0.1", b"-0", b"1.0")
TOKENS = ("0F0", "1B0", "2I1", "2W1", "0R3", "0U3", "0>1F0", "1>0B0", "9F9", "0F999999999", "x", "")


def mutate_bytes(rng: random.Random, text: bytes) -> bytes:
    """A few flips, deletions, insertions, doublings or a cut."""
    data = bytearray(text)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at : at + rng.choice((1, 1, 2, 8, 64))]
        elif kind == 2:
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 1, 3))))
        elif kind == 3:
            data[at:at] = data[at : at + rng.choice((1, 4, 32, 256))]
        elif kind == 4:
            data[at:at] = rng.choice((b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"\x00"))
        elif rng.random() < 0.2:
            del data[at:]
        if not data:
            break
    return bytes(data)


def mutate_number(rng: random.Random, text: bytes) -> bytes:
    """Another number in place of a run of digits."""
    starts = [i for i in range(len(text)) if text[i : i + 1].isdigit()]
    if not starts:
        return text
    start = end = rng.choice(starts)
    while end < len(text) and text[end : end + 1].isdigit():
        end += 1
    return text[:start] + rng.choice(NUMBERS) + text[end:]


def mutate_lines(rng: random.Random, text: bytes) -> bytes:
    """Lines deleted, doubled, swapped or moved; doubled lines make keys stand twice."""
    lines = text.split(b"\n")
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.randrange(3)
    if kind == 0:
        del lines[a]
    elif kind == 1:
        lines.insert(b, lines[a])
    else:
        lines[a], lines[b] = lines[b], lines[a]
    return b"\n".join(lines)


def nest_deeply(rng: random.Random, text: bytes) -> bytes:
    """Thousands of brackets in some place."""
    at = rng.randrange(len(text) + 1)
    depth = rng.choice((50, 1000, 100_000))
    opening, closing = rng.choice(((b"[", b"]"), (b'{"x":', b"}")))
    return text[:at] + opening * depth + closing * depth + text[at:]


def mutate_structure(rng: random.Random, text: bytes) -> bytes:
    """A value replaced, removed, doubled, renamed or swapped somewhere in the tree."""
    try:
        tree = json.loads(text)
    except ValueError:
        return mutate_bytes(rng, text)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        holders = list(_holders(tree))
        if not holders:
            break
        _change(rng, rng.choice(holders))
    return json.dumps(tree, ensure_ascii=rng.random() < 0.5).encode(errors="surrogatepass")


def _holders(tree: Any) -> Any:
    """Every object and array that has something in it."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict | list) and node:
            yield node
            waiting += node.values() if isinstance(node, dict) else node


def _change(rng: random.Random, node: Any) -> None:
    keys = list(node) if isinstance(node, dict) else list(range(len(node)))
    key, other = rng.choice(keys), rng.choice(keys)
    kind = rng.randrange(7)
    if kind == 0:
        del node[key]
    elif kind == 1:
        node[key] = json.loads(json.dumps(node[other]))
    elif kind == 2:
        node[key], node[other] = node[other], node[key]
    elif kind == 3 and isinstance(node, dict):
        node[rng.choice((f"{key}_", "x", ""))] = node.pop(key)
    elif kind == 3:
        node.insert(key, json.loads(json.dumps(node[other])))
    elif kind == 4:
        node[key] = _nudge(rng, node[key])
    else:
        node[key] = json.loads(json.dumps(rng.choice(INTERESTING)))


def _nudge(rng: random.Random, value: Any) -> Any:
    """A value near the old one: such mutants often still load."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + rng.choice((-1, 1, 2, 10, -value, value))
    if isinstance(value, float):
        return value * rng.choice((0.5, 2.0, -1.0, 1e6, 1e-6))
    if isinstance(value, str) and " " in value:
        words = value.split(" ")
        a, b = rng.randrange(len(words)), rng.randrange(len(words))
        words[a], words[b] = words[b], rng.choice((words[a], rng.choice(TOKENS)))
        return " ".join(words)
    if isinstance(value, str):
        return value[: rng.randrange(len(value) + 1)]
    return value


MUTATIONS: tuple[tuple[Mutation, int], ...] = (
    (mutate_structure, 12),
    (mutate_number, 3),
    (mutate_bytes, 3),
    (mutate_lines, 2),
    (nest_deeply, 1),
)


def mutate(rng: random.Random, text: bytes) -> bytes:
    """One mutant of a file."""
    kinds, weights = zip(*MUTATIONS, strict=True)
    mutation: Mutation = rng.choices(kinds, weights)[0]
    return mutation(rng, text)
