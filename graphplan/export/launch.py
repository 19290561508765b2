"""Slurm and SkyPilot: files that start our own runtime on the nodes that a plan was made for.

Every node starts one torchrun with a process for each of its devices, so that rank i is device i of
the plan; which nodes they are is for the scheduler to say. Paths and settings stand in quotes.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence

from graphplan.errors import InvalidOption
from graphplan.nouns.plan import Plan

PORT = 29500
_RUN = (
    'torchrun --nnodes {nodes} --node-rank {rank} --nproc-per-node {gpus} --master-addr "{head}"'
    " --master-port {port} -m graphplan_runtime"
)


def export_slurm(plan: Plan, words: Sequence[str]) -> str:
    """A batch script for sbatch; `words` are the arguments of `graphplan run`."""
    nodes, gpus = count_nodes(plan)
    run = _RUN.format(nodes=nodes, rank='"$SLURM_NODEID"', gpus=gpus, head="$0", port=PORT)
    return "\n".join(
        (
            "#!/bin/bash",
            "#SBATCH --job-name=graphplan",
            f"#SBATCH --nodes={nodes}",
            "#SBATCH --ntasks-per-node=1",
            f"#SBATCH --gpus-per-node={gpus}",
            'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            f'srun bash -c \'{run} "$@"\' "$head" {shlex.join(words)}',
            "",
        )
    )


def export_sky(plan: Plan, words: Sequence[str]) -> str:
    """A task for `sky launch`; the folder that it is started from is copied to every node."""
    nodes, gpus = count_nodes(plan)
    kinds = {kind for node in plan.cluster.nodes for kind in node.devices}
    kind = kinds.pop()
    if kinds or re.fullmatch(r"[A-Za-z0-9.-]+", kind) is None:
        raise InvalidOption(
            "SkyPilot takes nodes with accelerators of one kind.",
            remedy="Export with --to slurm, or plan for a cluster of one kind of device.",
        )
    run = _RUN.format(nodes=nodes, rank="$SKYPILOT_NODE_RANK", gpus=gpus, head="$head", port=PORT)
    command = f'head=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)\n{run} {shlex.join(words)}'
    return "\n".join(
        (
            "name: graphplan",
            "workdir: .",
            f"num_nodes: {nodes}",
            "resources:",
            f"  accelerators: {json.dumps(f'{kind.upper()}:{gpus}')}",
            f"run: {json.dumps(command)}",
            "",
        )
    )


def count_nodes(plan: Plan) -> tuple[int, int]:
    """Nodes, and devices of each; these schedulers give as many to all."""
    counts = {len(node.devices) for node in plan.cluster.nodes}
    if len(counts) > 1:
        raise InvalidOption(
            f"The nodes of {plan.cluster.name!r} have {sorted(counts)} devices; a job has as many"
            " on each.",
            remedy="Plan for nodes with equally many devices, or start torchrun on each by hand.",
        )
    return len(plan.cluster.nodes), counts.pop()
