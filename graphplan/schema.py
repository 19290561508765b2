"""make_schema: the JSON Schema of every file and of the commands' output, from the types."""

from __future__ import annotations

from typing import Any

import msgspec

from graphplan.errors import UnknownName
from graphplan.nouns.base import Noun
from graphplan.nouns.cluster import Cluster
from graphplan.nouns.costset import CostSet
from graphplan.nouns.diagnosis import Diagnosis
from graphplan.nouns.learned import LearnedCosts
from graphplan.nouns.opgraph import OpGraph
from graphplan.nouns.plan import Plan
from graphplan.nouns.table import ProfileTable
from graphplan.nouns.timeline import Timeline
from graphplan.report.figures import Figures
from graphplan.staleness.assess import Staleness

NOUN_BY_NAME: dict[str, type[Noun]] = {
    "graph": OpGraph,
    "table": ProfileTable,
    "cluster": Cluster,
    "plan": Plan,
    "timeline": Timeline,
    "costset": CostSet,
    "learned": LearnedCosts,
    "diagnosis": Diagnosis,
    "figures": Figures,
    "staleness": Staleness,
}
"""What has a schema; `diagnosis` is what `doctor` writes, `figures` is what `search --json` and
`show --json` print, `staleness` what `staleness --json` does."""

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def make_schema(name: str) -> dict[str, Any]:
    """The schema of one noun, self-contained."""
    if name not in NOUN_BY_NAME:
        raise UnknownName("schema", name, NOUN_BY_NAME)
    noun = NOUN_BY_NAME[name]
    version = next((f.default for f in msgspec.structs.fields(noun) if f.name == "version"), 1)
    return {
        "$schema": DIALECT,
        "$id": f"urn:graphplan:{name}:{version}",
        "title": f"graphplan {name}",
        "version": version,
        **msgspec.json.schema(noun),
    }
