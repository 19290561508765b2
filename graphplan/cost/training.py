"""Reading training data: cost sets, and loose graphs and tables that belong together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from graphplan.cost.hardware import find_device_type
from graphplan.errors import InvalidFile, InvalidOption
from graphplan.files import decode_noun, format_of, read_header, read_text
from graphplan.nouns.cluster import DeviceType
from graphplan.nouns.costset import CostSample, CostSet
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.table import ProfileTable


def read_training(paths: Sequence[Path | str]) -> CostSet:
    """One set of all that the files hold; a table finds its graph by the fingerprint."""
    sets: list[CostSet] = []
    graphs: dict[str, OpGraph] = {}
    tables: list[tuple[str, ProfileTable]] = []
    for path in paths:
        text, name = read_text(path), str(path)
        kind = read_header(text, name=name).format
        if kind == format_of(CostSet):
            sets.append(decode_noun(text, CostSet, name=name))
        elif kind == format_of(OpGraph):
            graph = decode_noun(text, OpGraph, name=name)
            graphs[graph.fingerprint] = graph
        elif kind == format_of(ProfileTable):
            tables.append((name, decode_noun(text, ProfileTable, name=name)))
        else:
            raise InvalidFile(
                f"{name} is a {kind!r} file; costs are learned from graphs, tables and cost sets.",
                remedy="Give graph.json of trace with table.json of profile, or a cost set.",
            )
    samples = [_join(name, table, graphs) for name, table in tables]
    devices = _collect_devices(sets, [sample.table.device for sample in samples])
    return CostSet(
        devices=devices,
        samples=(*(sample for found in sets for sample in found.samples), *samples),
        provenance="; ".join(
            dict.fromkeys(
                [found.provenance for found in sets] + [each.table.provenance for each in samples]
            )
        ),
    )


def _join(name: str, table: ProfileTable, graphs: dict[str, OpGraph]) -> CostSample:
    if table.source != "measured":
        raise InvalidOption(
            f"{name} is {table.source}, not measured: there is nothing to learn from it.",
            remedy="Measure it: graphplan profile model.py -o table.json.",
        )
    graph = graphs.get(table.graph)
    if graph is None:
        raise InvalidOption(
            f"{name} is for the graph {table.graph}, which is not among the files.",
            remedy="Give its graph too: graphplan trace model.py -o graph.json.",
        )
    missing = [op.name for op in graph.ops if op.name not in table.row_by_op]
    if missing:
        raise InvalidFile(
            f"{name} has no row for the op {missing[0]!r}.", remedy="Profile the model again."
        )
    return CostSample(model=graph.name, graph=graph, table=table)


def _collect_devices(sets: Sequence[CostSet], names: Sequence[str]) -> tuple[DeviceType, ...]:
    """The device types that sets describe, and those of loose tables from the profiles."""
    found = {device.name: device for each in sets for device in each.devices}
    for name in names:
        if name not in found:
            found[name] = find_device_type(name)
    return tuple(found.values())
