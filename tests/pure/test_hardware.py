"""Hardware and cluster profiles, and what a bad cluster file is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphplan.cli.main import run_command
from graphplan.cost.hardware import (
    CLUSTER_EXAMPLE,
    find_cluster,
    find_device_type,
    list_clusters,
    list_device_types,
    name_device,
    parse_cluster,
)
from graphplan.cost.tomlfile import find_line
from graphplan.errors import InvalidFile, InvalidOption, UnknownName
from graphplan.files import write_noun


@pytest.mark.parametrize("name", list_device_types())
def test_every_device_type_reads_and_names_its_source(name: str) -> None:
    """A hardware profile has its file's name, plausible figures and a source."""
    kind = find_device_type(name)
    assert kind.name == name
    assert kind.source
    assert 8 * 2**30 <= kind.memory_bytes <= 512 * 2**30
    assert 1e10 <= kind.bandwidth_bytes_per_s <= 1e13
    assert {"gemm", "conv", "attention", "stream", "norm", "softmax"} <= kind.laws.keys()
    assert all(law.source for law in kind.laws.values())
    assert "float32" in kind.flops_per_s_by_dtype


@pytest.mark.parametrize("name", list_clusters())
def test_every_cluster_scales_to_any_number_of_devices(name: str) -> None:
    """A cluster profile repeats its nodes and cuts the last one."""
    per_node = len(find_cluster(name).nodes[0].devices)
    for gpus in (1, per_node, per_node + 1, 3 * per_node):
        cluster = find_cluster(name, gpus=gpus)
        assert len(cluster.devices) == gpus
        assert {len(node.devices) for node in cluster.nodes[:-1]} <= {per_node}


def test_known_hardware_is_there() -> None:
    """The promised devices and clusters exist."""
    assert {"v100-16gb", "v100-32gb", "a100-40gb", "a100-80gb", "h100", "h200", "b200", "l40s",
            "rtx4090", "mi300x", "cpu", "l4", "t4", "a10g", "a40", "h100-pcie", "a100-80gb-pcie",
            "a100-40gb-pcie", "v100-32gb-pcie"} <= set(list_device_types())  # fmt: skip
    assert {"dgx-a100", "dgx-h100", "summit", "pcie-8", "cpu"} <= set(list_clusters())


def test_no_name_means_nodes_of_eight_a100() -> None:
    """GPUs without a cluster are of the default type, eight to a node."""
    cluster = find_cluster(None, gpus=12)
    assert [len(node.devices) for node in cluster.nodes] == [8, 4]
    assert {device.type.name for device in cluster.devices} == {"a100-80gb"}
    assert cluster.link_between(0, 7) == cluster.nodes[0].link
    assert cluster.link_between(0, 8) == cluster.link


def test_summit_is_as_in_the_evaluation_of_graphpipe() -> None:
    """Four V100 a node, 100 Gb/s between nodes."""
    cluster = find_cluster("summit", gpus=32)
    assert len(cluster.nodes) == 8
    assert 0.5 * 12.5e9 < cluster.link.bandwidth_bytes_per_s <= 12.5e9
    assert cluster.devices[0].type.memory_bytes == 16 * 2**30


def test_a_file_mixes_overrides_and_adds_device_types(tmp_path: Path) -> None:
    """Figures of a file replace those of the profile; a new type builds on a known one."""
    path = tmp_path / "lab.toml"
    path.write_text(
        CLUSTER_EXAMPLE.replace("a100-80gb = 8", "a100-80gb = 1, tiny = 1")
        + '[types.tiny]\nbased_on = "h100"\nmemory_gib = 24\n'
    )
    cluster = find_cluster(str(path))
    assert [d.type.name for d in cluster.devices] == ["a100-80gb", "tiny", "a100-80gb", "tiny"]
    assert [d.memory_bytes for d in cluster.devices[:2]] == [
        int(60 * 2**30 * 0.9),
        int(24 * 2**30 * 0.9),
    ]
    assert cluster.types[1].flops_per_s_by_dtype == find_device_type("h100").flops_per_s_by_dtype
    assert len(find_cluster(str(path), gpus=3).devices) == 3
    with pytest.raises(InvalidOption, match="has 4 devices, fewer than the 5"):
        find_cluster(str(path), gpus=5)


def test_a_cluster_in_json_is_read_too(tmp_path: Path) -> None:
    """What a plan holds as its cluster can be given back."""
    cluster = find_cluster("pcie-8", gpus=4)
    write_noun(cluster, tmp_path / "c.json")
    assert find_cluster(str(tmp_path / "c.json")) == cluster


BAD_FILES = {
    "count = 2|count = 0": "line 6: field 'nodes[0].count' is 0: expected `int` >= 1",
    "latency_us = 4|latency = 4": "line 8: field 'nodes[0].link.latency' is not known here; known: "
    "bandwidth_gb_per_s, latency_us, scope",
    ', latency_us = 4, scope = "device"|': "line 8: field 'nodes[0].link' lacks the field "
    "'latency_us'",
    "a100-80gb = 8|a100-80g = 8": "line 7: field 'nodes[0].devices' names the unknown device type "
    "'a100-80g'. Did you mean 'a100-80gb'?",
    "memory_gib = 60|memory_gib = -1": "line 11: field 'types.a100-80gb.memory_gib' is -1: "
    "expected `float` > 0.0",
    "[[nodes]]|[[nodes]": "line 5: the file is not valid TOML",
    'name = "lab"|': "lab.toml: the file lacks the field 'name'",
    "[types.a100-80gb]|[types.other]": "line 10: field 'types.other' describes a device type that "
    "no node has",
    "memory_gib = 60|based_on = 'h10'": "line 11: field 'types.a100-80gb.based_on' is 'h10', which "
    "no profile describes. Did you mean 'h100'?",
    "usable_memory = 0.9|usable_memory = 1.5": "line 2: field 'usable_memory' is 1.5: expected "
    "`float` <= 1.0",
}


@pytest.mark.parametrize("change", BAD_FILES)
def test_a_bad_file_gets_line_field_and_example(change: str) -> None:
    """The error names the line and the field, and shows a right file."""
    old, new = change.split("|")
    assert old in CLUSTER_EXAMPLE
    with pytest.raises(InvalidFile) as caught:
        parse_cluster(CLUSTER_EXAMPLE.replace(old, new), name="lab.toml")
    assert BAD_FILES[change] in str(caught.value)
    assert "[[nodes]]" in caught.value.remedy


def test_unknown_names_get_a_suggestion() -> None:
    """A misspelt cluster or device is answered with the nearest name."""
    with pytest.raises(UnknownName, match="Did you mean 'dgx-h100'"):
        find_cluster("dgx-h10")
    with pytest.raises(UnknownName, match="Did you mean 'h200'"):
        find_device_type("H20")
    with pytest.raises(InvalidFile, match="Cannot read"):
        find_cluster("missing.toml")
    with pytest.raises(InvalidOption):
        find_cluster(None, gpus=0)


def test_torch_names_lead_to_profiles() -> None:
    """The device that torch reports is found among the profiles."""
    assert name_device("NVIDIA A100-SXM4-80GB") == "a100-80gb"
    assert name_device("Tesla V100-SXM2-16GB") == "v100-16gb"
    assert name_device("NVIDIA H100 80GB HBM3") == "h100"
    assert name_device("NVIDIA L40S") == "l40s"
    assert name_device("NVIDIA L4") == "l4"
    assert name_device("NVIDIA A100 80GB PCIe") == "a100-80gb-pcie"
    assert name_device("GeForce GT 710") is None


def test_lines_are_found_through_arrays_and_quotes() -> None:
    """The second table of an array and quoted keys are told apart."""
    text = '[[nodes]]\na = 1\n[[nodes]]\n# a = 2\n"b c" = { d = 1 }\n[nodes.link]\nx = [\n 1]\n'
    assert find_line(text, ("nodes", 0, "a")) == 2
    assert find_line(text, ("nodes", 1, "b c", "d")) == 5
    assert find_line(text, ("nodes", 1, "link", "x")) == 7
    assert find_line(text, ("nodes", 1, "a")) == 3
    assert find_line(text, ("other",)) is None


def test_the_command_lists_and_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`clusters` names all profiles, shows one, and reads a file."""
    assert run_command(["clusters"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in (*list_clusters(), *list_device_types()))
    assert run_command(["clusters", "summit", "--gpus", "8"]) == 0
    assert "8 devices in 2 nodes" in capsys.readouterr().out
    assert run_command(["clusters", "h200"]) == 0
    assert "141 GiB" in capsys.readouterr().out
    assert run_command(["clusters", "h100", "--verbose"]) == 0
    shown = capsys.readouterr().out
    assert "mean error" in shown
    assert "efficiency" in shown
    assert "not validated" in shown
    path = tmp_path / "lab.toml"
    path.write_text(CLUSTER_EXAMPLE)
    assert run_command(["clusters", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "lab"
    path.write_text(CLUSTER_EXAMPLE.replace("count = 2", "count = no"))
    assert run_command(["clusters", str(path)]) == 2
    assert "line 6" in capsys.readouterr().err
