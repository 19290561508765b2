"""Attacks made by hand, as changes of sound files: names, calls, numbers and texts."""

from __future__ import annotations

import base64
import json
import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

MARKER = Path(tempfile.gettempdir(), f"graphplan-attack-{secrets.token_hex(8)}")
"""A file that nobody else can have made."""
CODE = f'__import__("os").system("touch {MARKER}")'
ESCAPE = "\x1b]0;owned\x07\x1b[2J"
BIDI = "\u202egnp.exe"
MARKUP = "[/][link=file:///etc/passwd]x[/link][bold"
SCRIPT = "</script><script>alert(1)</script>"

Tree = Any
Edit = Callable[[Tree], object]


def _first_array(tree: Tree) -> Tree:
    return next(iter(tree["arrays"].values()))


def _loop_trees(tree: Tree) -> None:
    """Every integer array becomes zeros: each node is its own child."""
    for array in tree["arrays"].values():
        if array["dtype"].startswith("int"):
            size = len(base64.b64decode(array["content"]))
            array["content"] = base64.b64encode(bytes(size)).decode()


def _slow_down(tree: Tree) -> None:
    """Every rate that can be one becomes so small that times have no end."""
    for device in tree["devices"]:
        for kind in ("plain", "roofline"):
            rates = device[kind]["flops_per_s_by_dtype"]
            device[kind]["flops_per_s_by_dtype"] = dict.fromkeys(rates, 1e-200)


def edit(text: bytes, change: Edit) -> bytes:
    """A JSON file with one change in its tree."""
    tree = json.loads(text)
    change(tree)
    return json.dumps(tree).encode(errors="surrogatepass")


def put(*path: str | int, value: Any) -> Edit:
    """A change: another value at a place."""

    def change(tree: Tree) -> None:
        for step in path[:-1]:
            tree = tree[step]
        tree[path[-1]] = value

    return change


def both(first: Edit, second: Edit) -> Edit:
    """A change: one after the other."""

    def change(tree: Tree) -> None:
        first(tree)
        second(tree)

    return change


def call(text: str, *, shape: list[Any] | None = None) -> Edit:
    """A change: another call of the graph's first op, which reads an input."""

    def change(tree: Tree) -> None:
        tree["ops"][0]["call"] = text
        if shape is not None:
            tree["ops"][0]["output"]["shape"] = shape

    return change


def rename_value(old: str, new: str) -> Edit:
    """A change: a value has another name wherever it is named."""

    def change(tree: Tree) -> None:
        text = json.dumps(tree).replace(json.dumps(old), json.dumps(new))
        tree.clear()
        tree.update(json.loads(text))

    return change


def chain_views(tree: Tree) -> None:
    """Hundreds of views of views of an input."""
    first = tree["inputs"][0]
    views, last = [], first["name"]
    for i in range(300):
        views.append(
            {"name": f"t{i}", "target": "aten.t.default", "call": "aten.alias.default(%0)",
             "inputs": [last], "output": first["spec"], "alias": first["name"]}
        )  # fmt: skip
        last = f"t{i}"
    tree["ops"] += views


GRAPHS: dict[str, Edit] = {
    "code in the name of an input": rename_value("words", f"y={CODE}"),
    "code in the name of an op": rename_value("embedding", f"v):\n    {CODE}\n#"),
    "code in the name of a weight": rename_value("table.weight", f"w')\n{CODE}#"),
    "dunder path of a weight": rename_value("table.weight", "__init__.__globals__.weight"),
    "attrgetter": call("attrgetter('__globals__')"),
    "methodcaller": call(f"methodcaller('touch', '{MARKER}')(%0)"),
    "aten.from_file writes": call(f"aten.from_file.default('{MARKER}', True, 10)"),
    "aten.save of TorchScript": call(f"aten.save.default(%0, '{MARKER}')"),
    "load_library": call(f"load_library('{MARKER}')"),
    "torch.ops.load_library": call(f"ops.load_library.default('{MARKER}')"),
    "an op of our own library": call("graphplan.opaque.default('x', [%0], [], [])"),
    "record_function": call("profiler._record_function_enter_new.default('x')"),
    "torch.hub as a target": put("ops", 0, "target", value="torch.hub.load"),
    "a storage": call("aten.set_.source_Storage(%0, 0)"),
    "a wider view": call("aten.as_strided.default(%0, [1000000], [1], 5)"),
    "resize": call("aten.resize_.default(%0, [268435456])"),
    "positions of a backward": call(
        "aten.max_pool2d_with_indices_backward.default(%0, %0, [2], [2], [0], [1], False, %0)"
    ),
    "out": call("aten.add.out(%0, %0, out=%0)"),
    "empty of 4 TB": call("aten.empty.memory_format([1099511627776])"),
    "repeat of 4 TB": call("aten.repeat.default(%0, [1048576, 1048576])"),
    "expand and sum": call("aten.expand.default(%0, [1073741824, 5])", shape=[1073741824, 5]),
    "product of 137 GFLOP": both(
        put("inputs", 0, "spec", value={"dtype": "float32", "shape": [4096, 4096]}),
        call("aten.mm.default(%0, %0)", shape=[4096, 4096]),
    ),
    "arange of 2^62": call("aten.arange.default(4611686018427387904)"),
    "split into 2^30": call("aten.tensor_split.sections(%0, 1073741824, 0)"),
    "unbind of an input of 2^26": both(
        put("inputs", 0, "spec", "shape", value=[1 << 26, "b"]), call("aten.unbind.int(%0)")
    ),
    "polynomial of degree 10^9": call("aten.special_hermite_polynomial_h.n_scalar(%0, 1000000000)"),
    "combinations": call("aten.combinations.default(%0, 30, True)"),
    "bincount of 2^40": call("aten.bincount.default(%0, None, 1099511627776)"),
    "list times 10^9": call("mul([1], 1000000000)"),
    "power tower": call("pow(9, 999999999)"),
    "deep lists": call(f"aten.relu.default({'[' * 50_000}{']' * 50_000})"),
    "a number of 20,000 digits": call(f"aten.relu.default({'9' * 20_000})"),
    "an open quote after 500,000 others": call("aten.relu.default(" + "'\\\\" * 200_000),
    "a call of 2 MB": call(f"aten.relu.default({'%0, ' * 500_000})"),
    "an operand that is not there": call("aten.relu.default(%99, @7)"),
    "a keyword that is no argument": call(f"aten.relu.default(%0, {'x' * 500}=1)"),
    "autocast of a class": call("autocast[__class__].aten.relu.default(%0)"),
    "300 views of views": chain_views,
    "a dimension of 2^62": put("inputs", 0, "spec", "shape", value=["b", 1 << 52, 1 << 10]),
    "a negative batch": put("inputs", 0, "spec", "shape", value=["b-7", 5]),
    "a batch of 2^53": put("batch_size", value=1 << 53),
    "saved bytes of 2^53": put("ops", 0, "saved_bytes", value=[1 << 53, 1 << 53]),
    "escape sequences in the name": put("name", value=ESCAPE),
    "text that runs backwards": put("name", value=BIDI),
    "markup in the name": put("name", value=MARKUP),
    "markup in a module": put("ops", 0, "module", value=MARKUP.replace(".", "")),
    "a name of 10 MB": put("name", value="x" * 10_000_000),
    "escape sequences in an unknown field": put(ESCAPE, value=1),
}

PLANS: dict[str, Edit] = {
    "a task of micro-batch 10^12": put("program", 0, value="0F1000000000000"),
    "a task of 300 digits": put("program", 0, value="0F" + "9" * 300),
    "200,000 tasks": put("program", 0, value="0F0 " * 200_000),
    "an empty program": put("program", value=[]),
    "a device 2^52": put("stages", "stages", 0, "devices", value=[1 << 52]),
    "2^52 micro-batches": put("prices", "batch_size", value=1 << 52),
    "10^308 seconds": put("prices", "stages", 0, "forward_s", value=1e308),
    "no peaks": put("prediction", "peak_bytes_by_device", value=[]),
    "an op named as code": put("model", "ops", 0, value=CODE),
    "a stage's op named as code": put("stages", "stages", 0, "ops", 0, value=f"{CODE}\n"),
    "a script in a label": put("labels", 0, "modules", value=[SCRIPT, MARKUP, '" onload="x']),
    "a script in the name": put("model", "name", value=SCRIPT),
    "markup in the name": put("model", "name", value=MARKUP),
    "escape sequences in the options": put("provenance", "options", value={"x": ESCAPE}),
    "a gradient of paths": put("provenance", "planner", value="../../../etc/passwd"),
    "65,536 times 64 devices": put("cluster", "nodes", 0, "devices", value=["a100-80gb"] * 400_000),
    "negative seconds": put("prices", "stages", 0, "forward_s", value=-1.0),
    "a bound of 0": put("bound", "step_s", value=0.0),
    "a policy with 10^15 batches": put("policy", "accumulate", value=10**15),
}

TABLES: dict[str, Edit] = {
    "columns of 10^308 s": put("rows", 0, "forward_s", value=[1e308] * 4),
    "batches of 2^52": put("batch_sizes", value=[1, 2, 4, 1 << 52]),
    "a row named as code": put("rows", 0, "op", value=CODE),
    "a negative calibration": put("calibration", value=[-1.0] * 4),
    "no rows": put("rows", value=[]),
    "escape sequences in the provenance": put("provenance", value=ESCAPE),
    "an update of -1 s": put("update_s_per_element", value=-1.0),
}

LEARNED: dict[str, Edit] = {
    "an array of 2^62 numbers": lambda t: _first_array(t).update(shape=[1 << 31, 1 << 31]),
    "an array without numbers": lambda t: _first_array(t).update(shape=[0], content=""),
    "all arrays gone": put("arrays", value={}),
    "no features": put("features", value=[]),
    "children that are their own parents": lambda t: _loop_trees(t),
    "a device named as markup": lambda t: t["devices"][0]["plain"].update(name=MARKUP),
    "no devices": put("devices", value=[]),
    "a roofline of 10^-200 FLOP/s": lambda t: _slow_down(t),
}

CLUSTERS: dict[str, Edit] = {
    "a million devices": put("nodes", 0, "devices", value=["a100-80gb"] * 1_000_000),
    "bandwidth of 10^308": put("link", "bandwidth_bytes_per_s", value=1e308),
    "memory of 2^53": put("types", 0, "memory_bytes", value=1 << 53),
    "a rate of 10^-308": put("types", 0, "flops_per_s_by_dtype", value={"float32": 1e-308}),
    "escape sequences in the name": put("name", value=ESCAPE),
    "latency of 10^308": put("link", "latency_s", value=1e308),
}

TOMLS: dict[str, bytes] = {
    "10^12 devices": b"[[nodes]]\ndevices = {a100-80gb = 1000000000000}\ncount = 1",
    "10^12 nodes": b"[[nodes]]\ndevices = {a100-80gb = 1}\ncount = 1000000000000",
    "deep tables": b"[" + b"a." * 30_000 + b"a]\nx = 1",
    "deep arrays": b"x = " + b"[" * 30_000 + b"]" * 30_000,
    "a number of 30,000 digits": b"x = " + b"9" * 30_000,
    "escape sequences": b'name = "\\u001b]0;owned\\u0007"\n',
    "a path as a base": b'[types.x]\nbased_on = "../../../etc/passwd"\n',
    "a dotted key of 200,000 parts": b"a" + b" . a" * 200_000 + b" x",
}

MANIFESTS: dict[str, Edit] = {
    "a file outside": put("file_by_tensor", "w", value="../../../../etc/passwd"),
    "an absolute file": put("file_by_tensor", "w", value="/etc/passwd"),
    "the folder itself": put("file_by_tensor", "w", value=".."),
    "a device": put("file_by_tensor", "w", value="/dev/zero"),
    "a NUL in a file": put("file_by_tensor", "w", value="x\x00y"),
    "a name of 100,000 letters": put("file_by_tensor", "w", value="x" * 100_000),
    "a step of 2^53": put("step", value=(1 << 53) + 2),
    "escape sequences in the model": put("model", value=ESCAPE),
}

LATESTS: dict[str, bytes] = {
    "the folder above": b"../saved/step-00000003",
    "an absolute folder": b"/etc",
    "bytes that are no text": b"\xff\xfe\x00step",
    "a NUL": b"step\x0000003",
    "1 MB of dots": b"../" * 300_000,
}

LINKS = (
    ".trial-0000", ".latest.new", ".step-00000003", ".step-00000004", "step-00000004", "latest",
    "lock", ".dropped-step-00000003",
)  # fmt: skip
"""Names in a folder of checkpoints that a run writes, or takes away."""

TENSORS: dict[str, dict[str, Any]] = {
    "a shape that overflows": {"shape": [0, 1 << 62, 1 << 62], "data_offsets": [0, 0]},
    "a shape of 2^62": {"shape": [1 << 62], "data_offsets": [0, 24]},
    "negative offsets": {"shape": [6], "data_offsets": [-24, 0]},
    "offsets beyond the end": {"shape": [6], "data_offsets": [1 << 40, (1 << 40) + 24]},
    "a dtype that is none": {"dtype": "OBJECT", "shape": [6], "data_offsets": [0, 24]},
    "1,000 dimensions": {"shape": [1] * 1_000, "data_offsets": [0, 4]},
}

CAPTURES: dict[str, Edit] = {
    "a module inside of another": put("evidence", "missing", value=["antigravity.x"]),
    "a relative module": put("evidence", "missing", value=[".x"]),
    "a file without an end": put("evidence", "files", value={"/dev/zero": "0" * 64}),
    "a file with a NUL": put("evidence", "files", value={"x\x00y": "0" * 64}),
    "code in the name of an input": put("graph", "inputs", 0, "name", value=f"y={CODE}"),
    "another request": put("request", value=CODE),
}

TIMELINES: dict[str, Edit] = {
    "2^20 devices": put("num_devices", value=1 << 20),
    "spans of 10^308 s": put("spans", 0, value=["0F0", 0, -1e308, 1e308]),
    "a span named as a script": put("spans", 0, value=[SCRIPT, 0, 0.0, 1.0]),
    "a channel named as escapes": put("spans", 0, value=["0F0", ESCAPE, 0.0, 1.0]),
    "a task of 300 digits": put("spans", 0, value=["0F" + "9" * 300, 0, 0.0, 1.0]),
    "a batch of 2^53": put("batch_size", value=1 << 53),
    "no spans": put("spans", value=[]),
}
