"""Attacks made by hand: saved programs that try more than a model does."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
from typing import Any

import torch

from tools.attack_edits import CODE, MARKER
from tools.attack_readers import read_member, repack

_END = struct.Struct("<4s4H2LH")
"""What stands at the end of an archive."""


class _Evil:
    def __reduce__(self) -> Any:
        return os.system, (f"touch {MARKER}",)


def _save_evil() -> bytes:
    file = io.BytesIO()
    torch.save(((_Evil(),), {}), file)
    return file.getvalue()


def _dump_evil() -> bytes:
    return pickle.dumps(((_Evil(),), {}), protocol=2)


def _add_table(sound: bytes, changes: dict[str, bytes]) -> bytes:
    """Python reads the sound table of contents before the end, torch the one in the comment."""
    members, table = _split(repack(sound, {}))
    others, other = _split(repack(sound, changes))
    start = len(members) + len(others)
    hidden = start + len(table) + _END.size
    count = len(zipfile.ZipFile(io.BytesIO(sound)).infolist())
    comment = _move_members(other, len(members))
    end = _END.pack(b"PK\5\6", 0, 0, count, count, len(table), hidden, len(comment))
    return members + others + _move_members(table, hidden - start) + end + comment


def _split(archive: bytes) -> tuple[bytes, bytes]:
    """The members of an archive, and their table."""
    *_, size, start, _ = _END.unpack(archive[-_END.size :])
    return archive[:start], archive[start : start + size]


def _move_members(table: bytes, by: int) -> bytes:
    """A table of contents whose members are elsewhere."""
    moved, at = bytearray(table), 0
    while at < len(table):
        (place,) = struct.unpack_from("<L", table, at + 42)
        struct.pack_into("<L", moved, at + 42, place + by)
        at += 46 + sum(struct.unpack_from("<3H", table, at + 28))
    return bytes(moved)


def _bomb() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/models/model.json", b" " * (256 << 20))
    return file.getvalue()


MODEL = "models/model.json"
PICKLE = "data/sample_inputs/model.pt"


def list_programs(sound: bytes) -> dict[str, bytes]:
    """Saved programs that try more than a model does."""
    return _list_pickles(sound) | _list_calls(sound) | _list_archives(sound)


def _list_pickles(sound: bytes) -> dict[str, bytes]:
    """Members that run when they are unpickled or linked."""
    config = read_member(sound, "model_weights_config.json")
    return {
        "a pickle for example inputs": repack(sound, {PICKLE: _save_evil()}),
        "a plain pickle": repack(sound, {PICKLE: pickle.dumps(_Evil())}),
        "a custom object": repack(sound, {"data/constants/custom_obj_0": pickle.dumps(_Evil())}),
        "an opaque object": repack(sound, {"data/constants/opaque_obj_0": pickle.dumps(_Evil())}),
        "a weight that is a pickle": repack(
            sound,
            {
                "data/weights/weight_0": pickle.dumps(_Evil()),
                "data/weights/model_weights_config.json": config.replace(
                    b'"use_pickle": false', b'"use_pickle": true'
                ),
            },
        ),
        "a compiled library": repack(sound, {"data/aotinductor/model/x.so": b"\x7fELF"}),
    }


def _list_calls(sound: bytes) -> dict[str, bytes]:
    """Graphs that call functions, and sizes that are evaluated."""
    graph = read_member(sound, MODEL)
    quoted = CODE.replace('"', "'")

    def target(name: str) -> bytes:
        changed = graph.replace(b"torch.ops.aten.linear.default", name.encode())
        return repack(sound, {MODEL: changed})

    def expression(text: str) -> bytes:
        at = graph.index(b'"expr_str": "') + 13
        end = graph.index(b'"', at)
        return repack(sound, {MODEL: graph[:at] + text.encode() + graph[end:]})

    return {
        "torch.hub.load": target("torch.hub.load"),
        "torch.load": target("torch.load"),
        "attrgetter": target("_operator.attrgetter"),
        "an extension": target("#os:system"),
        "aten.from_file": target("torch.ops.aten.from_file.default"),
        "aten.save": target("torch.ops.aten.save.default"),
        "a kernel": target("torch.ops.higher_order.triton_kernel_wrapper_mutation"),
        "code as a size": expression(quoted),
        "code behind a symbol": expression(f"Symbol('s0') + {quoted}"),
        "a lambda as a size": expression("(lambda: 0)()"),
        "a power tower": expression(
            "Pow(Integer(9), Pow(Integer(9), Pow(Integer(9), Integer(9))))"
        ),
        "a power of powers": expression("9**9**9**9"),
        "10,000 parentheses": expression("(" * 4_000 + "1" + ")" * 4_000),
    }


def _list_archives(sound: bytes) -> dict[str, bytes]:
    """Archives with more in them, or less, than a model needs."""
    graph = read_member(sound, MODEL)
    return {
        "an import by an enum": repack(
            sound, {MODEL: graph.replace(b"builtins.dict", b"__enum__ antigravity:x")}
        ),
        "a path outside": repack(sound, {"../../../tmp/x": b""}),
        "an unknown folder": repack(sound, {"hooks/post": b""}),
        "two archives": b"\x00" * 64 + sound,
        "two tables of contents": _add_table(sound, {PICKLE: _save_evil()}),
        "two tables in its example inputs": repack(
            sound, {PICKLE: _add_table(read_member(sound, PICKLE), {"data.pkl": _dump_evil()})}
        ),
        "a comment": sound[:-2] + struct.pack("<H", 7) + b"comment",
        "a bomb": _bomb(),
        "half an archive": sound[: len(sound) // 2],
        "deep JSON": repack(sound, {MODEL: b"[" * 100_000 + b"]" * 100_000}),
    }
