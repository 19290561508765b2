"""Exports say a plan in other runtimes' words, and these mean what the plan means."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphplan.cli.main import run_command
from graphplan.errors import InvalidOption
from graphplan.export.deepspeed import export_deepspeed
from graphplan.export.flat import export_flat
from graphplan.export.gate import judge_export
from graphplan.export.launch import export_sky, export_slurm
from graphplan.export.layers import find_detour, list_layers
from graphplan.export.megatron import export_megatron, render_arguments, render_yaml
from graphplan.export.order import read_order
from graphplan.export.targets import TARGETS
from graphplan.export.torch import export_torch, is_path, linearise
from graphplan.export.torchtitan import export_torchtitan
from graphplan.files import write_noun
from graphplan.nouns.plan import Plan
from graphplan.nouns.training import Training
from graphplan.schedule.onefoneb import build_1f1b
from graphplan.schedule.torchtext import format_torch_csv
from tests.pure.export_readers import (
    Picture,
    read_deepspeed,
    read_megatron,
    read_torch,
    read_torchtitan,
)
from tests.pure.exported import cut_layers, decoder, hand_plan, listed_layers
from tests.pure.test_export_gate import in_graph
from tests.pure.test_planner import towers

MODEL = decoder(4)


def test_a_chain_becomes_megatrons_arguments() -> None:
    """Four stages in turn on two pipeline ranks of two replicas, half of the layers recomputed."""
    plan = hand_plan(
        MODEL,
        cut_layers(MODEL, (1, 1, 1, 1)),
        devices=[(0, 1), (2, 3), (0, 1), (2, 3)],
        zero=1,
        sizes=4,
        num_micro_batches=4,
        training=Training(batch_size=16, precision="bfloat16", mixed=True, optimizer="sgd"),
    )
    said = render_arguments(export_megatron(plan, MODEL))
    assert said == (
        "# For 4 ranks: torchrun --nproc-per-node ... pretrain_gpt.py"
        ' "${MEGATRON_ARGS[@]}" and the sizes of the model.\n'
        "MEGATRON_ARGS=(\n"
        "  --num-layers 4\n"
        "  --tensor-model-parallel-size 1\n"
        "  --pipeline-model-parallel-size 2\n"
        "  --pipeline-model-parallel-layout 'Et|t|t|tL'\n"
        "  --microbatch-group-size-per-virtual-pipeline-stage 2\n"
        "  --bf16\n"
        "  --micro-batch-size 2\n"
        "  --global-batch-size 16\n"
        "  --optimizer sgd\n"
        "  --sgd-momentum 0.0\n"
        "  --use-distributed-optimizer\n"
        "  --untie-embeddings-and-output-weights\n"
        ")\n"
    )


def test_megatrons_yaml_has_its_sections() -> None:
    """Recomputed stages become units as large as the largest stage, and embeddings stay tied."""
    model = decoder(4, tied=True)
    ops = cut_layers(model, (1, 3))
    said = render_yaml(export_megatron(hand_plan(model, ops, recompute=ops), model))
    assert said == (
        "# For 2 ranks.\n"
        "# Note: embedding and head are not recomputed: Megatron recomputes layers only.\n"
        "language_model:\n"
        "  num_layers: 4\n"
        '  recompute_granularity: "full"\n'
        '  recompute_method: "uniform"\n'
        "  recompute_num_layers: 3\n"
        "model_parallel:\n"
        "  tensor_model_parallel_size: 1\n"
        "  pipeline_model_parallel_size: 2\n"
        '  pipeline_model_parallel_layout: "Et|tttL"\n'
        "micro_batch_size: 2\n"
        "global_batch_size: 8\n"
        'optimizer: "adam"\n'
    )


def test_deepspeed_counts_embedding_and_head(tmp_path: Path) -> None:
    """Parts are boundaries of a list with an entry before the layers and one behind."""
    model = decoder(4, tied=True)
    text = export_deepspeed(hand_plan(model, cut_layers(model, (3, 1))), model, tmp_path)
    said = json.loads((tmp_path / "planned.json").read_text())
    assert said["parts"] == [0, 4, 6]
    assert said["entries"][1:-1] == [f"model.layers.{i}" for i in range(4)]
    assert "share embed" in text and "TiedLayerSpec" in text


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_is_exported_reads_back(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Readers written from the targets' documentation see the plan's own stages."""
    counts = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
    model = decoder(sum(counts))
    ranks = data.draw(st.sampled_from([r for r in range(1, 7) if len(counts) % r == 0]))
    width = data.draw(st.integers(1, 2))
    ops = cut_layers(model, counts)
    again = data.draw(st.sampled_from(["none", "all", "each"]))
    recompute = [
        each if again == "all" or (again == "each" and data.draw(st.booleans())) else ()
        for each in ops
    ]
    plan = hand_plan(
        model,
        ops,
        devices=[tuple(range(s % ranks * width, (s % ranks + 1) * width)) for s in range(len(ops))],
        sizes=width * data.draw(st.integers(1, 2)),
        num_micro_batches=data.draw(st.integers(1, 9)),
        recompute=recompute,
    )
    layers = [tuple(range(sum(counts[:s]), sum(counts[: s + 1]))) for s in range(len(counts))]
    expected = picture_plan(plan, layers)
    folder = tmp_path_factory.mktemp("exported")
    passed = [name for name in TARGETS if not judge_export(plan, TARGETS[name], model)]
    if "megatron" in passed:
        assert read_megatron(render_arguments(export_megatron(plan, model))) == expected
    if "deepspeed" in passed:
        export_deepspeed(plan, model, folder / "deepspeed")
        assert read_deepspeed(folder / "deepspeed") == expected
    if "torchtitan" in passed:
        export_torchtitan(plan, model, folder / "torchtitan")
        assert read_torchtitan(folder / "torchtitan") == expected
    if "torch" in passed:
        (folder / "model.py").write_text("")
        export_torch(plan, model, str(folder / "model.py"), {}, folder / "torch")
        assert read_torch(folder / "torch", layers) == expected
    # What these plans are made of, each of them can say; but not every mixture.
    assert width > 1 or "torch" in passed
    if again != "each" and ranks == len(counts):
        assert {"megatron", "torchtitan", "deepspeed"} <= set(passed)


def picture_plan(plan: Plan, layers: list[tuple[int, ...]]) -> Picture:
    """The plan itself, as the readers see it."""
    first = plan.stages.stages[0]
    held = tuple(
        tuple(
            (layers[s], layers[s] if stage.recompute else ())
            for s, stage in enumerate(plan.stages.stages)
            if device in stage.devices
        )
        for device in range(len(plan.prices.memory_bytes_by_device))
    )
    return Picture(
        held,
        first.micro_batch_size // len(first.devices),
        plan.training.batch_size,
        plan.training.batch_size // first.micro_batch_size,
    )


def test_places_of_ops_around_the_layers() -> None:
    """Before, behind, and made beside them without a gradient."""
    listed = listed_layers(MODEL)
    assert listed.list_ops("entry") == ("embed",)
    assert listed.list_ops("exit") == ("norm", "score")
    assert listed.list_ops("free") == ("rotary",)
    assert listed.paths == tuple(f"model.layers.{i}" for i in range(4))
    assert find_detour(MODEL, listed) is None


def test_a_jump_over_a_layer_is_seen() -> None:
    """The third layer reads the first one."""
    ops = tuple(
        msgspec.structs.replace(op, inputs=("feed0", "rotary")) if op.name == "attend2" else op
        for op in MODEL.ops
    )
    model = msgspec.structs.replace(MODEL, ops=ops)
    listed = list_layers(model)
    assert listed is not None
    assert find_detour(model, listed) == (
        "attend2 reads feed0, which is not of the layer just before it"
    )


def test_the_flat_form_names_both_ends_of_every_tensor() -> None:
    """Every input of a stage is an output of another one."""
    flat = export_flat(in_graph())
    outputs = {(s["index"], o["value"]) for s in flat["stages"] for o in s["outputs"]}
    inputs = {(i["from"], i["value"]) for s in flat["stages"] for i in s["inputs"]}
    assert inputs == outputs != set()
    assert json.loads(json.dumps(flat)) == flat


def test_a_chain_keeps_its_order_in_torchs_file() -> None:
    """The CSV holds the plan's own tasks, though all stages read a table of the first one."""
    plan = hand_plan(MODEL, cut_layers(MODEL, (1, 1, 2)), num_micro_batches=8)
    assert is_path(plan.stages)
    rows = format_torch_csv(read_order(plan)).splitlines()
    assert rows[2] == ",".join(f"2{kind}{m}" for m in range(8) for kind in "FB")


def test_a_graph_is_linearised_with_its_bytes() -> None:
    """Every neighbour pair is an edge, and torch's file can be written."""
    plan = in_graph()
    assert not is_path(plan.stages)
    chain = linearise(plan.prices)
    assert chain.edges == tuple((s, s + 1) for s in range(len(chain.stages) - 1))
    assert len(format_torch_csv(build_1f1b(chain)).splitlines()) == 3


def test_launch_files_have_the_nodes_of_the_plan() -> None:
    """Two nodes of two devices; arguments that a shell would take apart stay whole."""
    plan = hand_plan(MODEL, cut_layers(MODEL, (1, 1, 1, 1)))
    (node,) = plan.cluster.nodes
    half = msgspec.structs.replace(node, devices=node.devices[:2])
    cluster = msgspec.structs.replace(plan.cluster, nodes=(half, half))
    plan = msgspec.structs.replace(plan, cluster=cluster)
    words = ["plan.json", "my model.py", "--set", "k='$(x)"]
    script = export_slurm(plan, words)
    assert "#SBATCH --nodes=2\n" in script and "#SBATCH --gpus-per-node=2\n" in script
    assert shlex.split(script.splitlines()[-1])[-4:] == words
    sky = export_sky(plan, words)
    assert "num_nodes: 2\n" in sky and ':2"\n' in sky
    command = json.loads(sky.split("run: ")[1])
    assert shlex.split(command.splitlines()[1])[-4:] == words
    uneven = msgspec.structs.replace(cluster, nodes=(half, node))
    with pytest.raises(InvalidOption, match="as many on each"):
        export_slurm(msgspec.structs.replace(plan, cluster=uneven), words)


def test_a_slurm_script_runs_what_it_says(tmp_path: Path) -> None:
    """With srun, scontrol and torchrun replaced by echoes, every word arrives."""
    plan = hand_plan(MODEL, cut_layers(MODEL, (2, 2)))
    words = ["a plan.json", "model.py", "--set", "k=$(touch pwned)'\""]
    tools = {
        "scontrol": "echo first; echo second",
        "srun": 'exec "$@"',
        "torchrun": 'printf "%s\\n" "$@" > seen',
    }
    for name, body in tools.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "job.sh").write_text(export_slurm(plan, words))
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_NODEID": "0"}
    subprocess.run(["bash", "job.sh"], cwd=tmp_path, env=environment, check=True, timeout=60)
    seen = (tmp_path / "seen").read_text().splitlines()
    assert seen[-4:] == words
    assert seen[seen.index("--master-addr") + 1] == "first"
    assert not (tmp_path / "pwned").exists()


EVIL = "model.$(touch pwned)';touch pwned;'\"\\`touch pwned`"


def test_names_of_a_model_never_become_code(tmp_path: Path) -> None:
    """Paths of modules and folders with quotes and commands are data wherever they stand."""
    ops = tuple(
        msgspec.structs.replace(op, module=op.module.replace("model.layers", EVIL))
        for op in MODEL.ops
    )
    model = msgspec.structs.replace(MODEL, ops=ops, name="'; touch pwned; #\ntouch pwned")
    plan = hand_plan(model, cut_layers(model, (2, 2)))
    plan = msgspec.structs.replace(plan, model=msgspec.structs.replace(plan.model, name=model.name))
    script = tmp_path / "args.sh"
    script.write_text(render_arguments(export_megatron(plan, model)) + "\nenv > seen\n")
    subprocess.run(["bash", str(script)], cwd=tmp_path, check=True, timeout=60)
    folder = tmp_path / "$(touch pwned) 'x'"
    (tmp_path / "model.py").write_text("")
    said = export_torch(plan, model, str(tmp_path / "model.py"), {"k": EVIL}, folder)
    command = said.splitlines()[-1].removeprefix("Run it with: ").replace("torchrun", "echo", 1)
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True, timeout=60)
    export_deepspeed(plan, model, tmp_path / "deepspeed")
    export_torchtitan(plan, model, tmp_path / "torchtitan")
    ours = Path(__file__).resolve().parents[2] / "graphplan" / "export"
    for copy, code in (
        (folder / "run.py", "torch_launcher.py"),
        (tmp_path / "deepspeed" / "planned.py", "deepspeed_module.py"),
        (tmp_path / "torchtitan" / "planned.py", "torchtitan_config.py"),
    ):
        assert copy.read_bytes() == (ours / code).read_bytes()
    assert (tmp_path / "seen").exists()
    assert not (tmp_path / "pwned").exists()


def test_the_command_writes_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """dot and json need no model; an unknown target gets a suggestion."""
    model = towers(length=2)
    write_noun(in_graph(), tmp_path / "plan.json")
    write_noun(model, tmp_path / "graph.json")
    path, graph = str(tmp_path / "plan.json"), str(tmp_path / "graph.json")
    assert run_command(["export", path, "--to", "dot"]) == 0
    assert capsys.readouterr().out.startswith("digraph")
    assert run_command(["export", path, "--to", "json", "-o", str(tmp_path / "flat.json")]) == 0
    assert json.loads((tmp_path / "flat.json").read_text())["format"] == "graphplan/flat"
    assert run_command(["export", path, "--to", "tourch"]) == 2
    assert "Did you mean 'torch'" in capsys.readouterr().err
    assert run_command(["export", path, "--to", "megatron"]) == 2
    assert "--model" in capsys.readouterr().err
    assert run_command(["export", path, "--to", "megatron", "--model", graph]) == 2
    assert "no list of repeated layers" in capsys.readouterr().err
    assert run_command(["export", path, "--to", "torch", "--model", graph]) == 2
    assert "has no code" in capsys.readouterr().err


def test_the_command_exports_a_chain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Megatron's words go where -o says, in the form of its ending."""
    write_noun(hand_plan(MODEL, cut_layers(MODEL, (2, 2))), tmp_path / "plan.json")
    write_noun(MODEL, tmp_path / "graph.json")
    words = ["export", str(tmp_path / "plan.json"), "--model", str(tmp_path / "graph.json")]
    assert run_command([*words, "--to", "megatron"]) == 0
    assert "'Ett|ttL'" in capsys.readouterr().out
    assert run_command([*words, "--to", "megatron", "-o", str(tmp_path / "m.yaml")]) == 0
    assert (tmp_path / "m.yaml").read_text().startswith("# For 2 ranks.\nlanguage_model:\n")
    for target in ("deepspeed", "torchtitan"):
        assert run_command([*words, "--to", target, "-o", str(tmp_path / target)]) == 0
        assert (tmp_path / target / "planned.py").exists()
