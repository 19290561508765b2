"""Options and arguments that several sub-commands share, and their parsing."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from graphplan.errors import InvalidOption

if TYPE_CHECKING:
    from graphplan.nouns.cluster import Cluster
    from graphplan.nouns.learned import LearnedCosts
    from graphplan.nouns.opgraph import OpGraph
    from graphplan.nouns.table import ProfileTable
    from graphplan.planner.options import SearchOptions

Command = TypeVar("Command", bound=Callable[..., Any])

LEARNED = "learned:"
"""What `--costs` says before the file of a learned cost model."""
CODE_HELP = (
    "A model.py runs when it is opened, and so does a .pt2 file: open only your own. A graph.json"
    " cannot execute anything."
)
"""What the help of every command that takes a model says."""
COSTS_HELP = "`estimate`, a table.json of profile, or `learned:FILE` with a file of learn."
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)


def model_argument(command: Command) -> Command:
    """MODEL and --set."""
    command.__doc__ = f"{command.__doc__ or ''}\n\n    {CODE_HELP}\n    "
    command = click.argument("model", type=str)(command)
    return click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="Pass a setting to the model file's build(); may be repeated.",
    )(command)


def cluster_options(command: Command) -> Command:
    """--gpus, --cluster, --memory and --execution."""
    command = click.option("--gpus", type=click.IntRange(1, 65536), help="How many GPUs.")(command)
    command = click.option(
        "--cluster", metavar="NAME|FILE", help="A known cluster or a TOML file."
    )(command)
    command = click.option(
        "--execution",
        type=click.Choice(("eager", "compiled")),
        default="eager",
        show_default=True,
        help="Kernels issued one by one, or joined and replayed by a compiler (estimates only).",
    )(command)
    return click.option(
        "--memory", metavar="SIZE", help="Cap on the memory of every device, e.g. 16GB."
    )(command)


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE pairs; values are ints, floats, true/false or text."""
    return dict(_parse_setting(each) for each in settings)


def _parse_setting(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise InvalidOption(
            f"{text!r} is not a setting.", remedy="Write --set key=value, e.g. --set layers=4."
        )
    if value.lower() in ("true", "false"):
        return key, value.lower() == "true"
    for kind in (int, float):
        try:
            return key, kind(value)
        except ValueError:
            continue
    return key, value


def parse_bytes(text: str) -> int:
    """`16GB`, `512MiB`, `1e9` or a plain number of bytes; units are powers of 1024."""
    match = _BYTES.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise InvalidOption(
            f"{text!r} is not a size in bytes.", remedy="Write a number with a unit, e.g. 16GB."
        )
    return int(float(match[1]) * _UNITS[match[2].lower()])


def parse_budget(text: str) -> float | None:
    """`60s`, `5m`, `90`, or `none` for all that it takes."""
    if text == "none":
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)?", text)
    if match is None or not float(match[1]):
        raise InvalidOption(
            f"{text!r} is no time.", remedy="Write --budget 60s, --budget 5m or --budget none."
        )
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2] or "s"]


def parse_sizes(text: str) -> tuple[int, ...]:
    """`1,4,16`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise InvalidOption(
            f"{text!r} are no micro-batch sizes.", remedy="Write --batch-sizes 1,4,16."
        )
    return tuple(sorted({int(part) for part in parts}))


def parse_pins(pins: Sequence[str]) -> dict[str, int]:
    """module.path=device pairs."""
    found: dict[str, int] = {}
    for text in pins:
        path, equals, device = text.rpartition("=")
        if not equals or not device.isdigit():
            raise InvalidOption(
                f"{text!r} does not pin a module to a device.",
                remedy="Write --pin module.path=device, e.g. --pin encoder.layers.0=0.",
            )
        found[path] = int(device)
    return found


def load_cluster(
    name: str | None, gpus: int | None, memory: str | None, execution: str = "eager"
) -> Cluster:
    """The cluster that the options describe."""
    import msgspec

    from graphplan.cost.hardware import compile_cluster, find_cluster

    cluster = find_cluster(name, gpus=gpus)
    if execution == "compiled":
        cluster = compile_cluster(cluster)
    if memory is None:
        return cluster
    cap = parse_bytes(memory)
    share = cluster.usable_memory
    types = tuple(
        msgspec.structs.replace(kind, memory_bytes=min(kind.memory_bytes, int(cap / share)))
        for kind in cluster.types
    )
    return msgspec.structs.replace(cluster, types=types)


def cache_option(command: Command) -> Command:
    """--no-cache."""
    return click.option(
        "--no-cache",
        "use_cache",
        is_flag=True,
        flag_value=False,
        default=True,
        help="Capture the model anew, and keep nothing.",
    )(command)


@contextlib.contextmanager
def ended_at_once() -> Iterator[None]:
    """Let Ctrl-C end the process without an exception, while torch captures.

    Its tracing calls Python from C++, where an exception at the wrong place aborts the process.
    Nothing is lost: what is kept of a capture is written when it is done.
    """

    def end(number: int, frame: object) -> None:
        os.write(2, b"Interrupted.\n")  # What a model prints while it is built is held back.
        os._exit(130)

    before = signal.getsignal(signal.SIGINT)
    if before in (signal.SIG_IGN, None):
        yield
        return
    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def load_graph(model: str, settings: Mapping[str, Any], *, use_cache: bool = True) -> OpGraph:
    """The op graph of a model file, a .pt2 file or a graph.json."""
    if model.endswith(".json"):
        from graphplan.files import read_noun
        from graphplan.nouns.opgraph import OpGraph

        if settings:
            raise InvalidOption(
                f"--set reaches a model's build(); {model} is a captured graph.",
                remedy="Leave --set out, or give the model file.",
            )
        return read_noun(model, OpGraph)
    with ended_at_once():
        from graphplan.captures import load_model_graph

        return load_model_graph(model, settings, use_cache=use_cache)


def load_tables(
    costs: str, graph: OpGraph, cluster: Cluster, options: SearchOptions
) -> Mapping[str, ProfileTable] | None:
    """Tables by device type; None means that the planner estimates."""
    from graphplan.files import read_noun
    from graphplan.nouns.table import ProfileTable

    if costs == "estimate":
        return None
    if costs.startswith(LEARNED):
        from graphplan.planner.pose import choose_training, predict_tables

        training = choose_training(graph, cluster, options)
        return predict_tables(graph, cluster, training, load_learned(costs))
    table = read_noun(costs, ProfileTable)
    if table.graph != graph.fingerprint:
        raise InvalidOption(
            f"{costs} was made for the graph {table.graph}; this model is {graph.fingerprint}.",
            remedy="Profile this model: graphplan profile model.py -o table.json.",
        )
    return {kind.name: table for kind in cluster.types}


def load_learned(costs: str) -> LearnedCosts:
    """The learned cost model that `learned:FILE` names."""
    from graphplan.files import read_noun
    from graphplan.nouns.learned import LearnedCosts

    path = costs.removeprefix(LEARNED)
    if not path:
        raise InvalidOption(
            f"{costs!r} names no file.",
            remedy="Train one with graphplan learn -o cost.json, then --costs learned:cost.json.",
        )
    return read_noun(path, LearnedCosts)
