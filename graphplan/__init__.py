"""graphplan: cut PyTorch models of any shape into a graph of pipeline stages.

    import graphplan as gp

    captured = gp.capture(model, inputs)
    plan = gp.search(captured, gp.cluster("dgx-a100", gpus=8))
    gp.save(plan, "plan.json")

Names are imported when they are used, so that `import graphplan` loads neither torch nor a solver.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_HOME_BY_NAME = {
    "Cluster": "graphplan.nouns.cluster",
    "GraphplanError": "graphplan.errors",
    "OpGraph": "graphplan.nouns.opgraph",
    "Plan": "graphplan.nouns.plan",
    "ProfileTable": "graphplan.nouns.table",
    "SearchOptions": "graphplan.planner.options",
    "Timeline": "graphplan.nouns.timeline",
    "capture": "graphplan.api",
    "check": "graphplan.api",
    "cluster": "graphplan.api",
    "explain": "graphplan.api",
    "figures": "graphplan.api",
    "load": "graphplan.api",
    "save": "graphplan.api",
    "search": "graphplan.api",
    "whatif": "graphplan.api",
}

__all__ = [  # noqa: RUF022 (the verbs come first)
    "capture",
    "cluster",
    "search",
    "whatif",
    "explain",
    "figures",
    "check",
    "save",
    "load",
    "SearchOptions",
    "OpGraph",
    "ProfileTable",
    "Cluster",
    "Plan",
    "Timeline",
    "GraphplanError",
]

if TYPE_CHECKING:
    from graphplan.api import capture, check, cluster, explain, figures, load, save, search, whatif
    from graphplan.errors import GraphplanError
    from graphplan.nouns.cluster import Cluster
    from graphplan.nouns.opgraph import OpGraph
    from graphplan.nouns.plan import Plan
    from graphplan.nouns.table import ProfileTable
    from graphplan.nouns.timeline import Timeline
    from graphplan.planner.options import SearchOptions


def __getattr__(name: str) -> object:
    home = _HOME_BY_NAME.get(name)
    if home is None:
        raise AttributeError(f"module 'graphplan' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted((*__all__, "__version__"))
