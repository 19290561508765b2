"""Loading: the op graph of a model file, from the store or captured now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from graphplan.captures.store import describe_request, find_capture, keep_capture
from graphplan.captures.witness import watching
from graphplan.nouns.opgraph import OpGraph

Capture = Callable[[str, Mapping[str, Any]], OpGraph]


def capture_now(model: str, settings: Mapping[str, Any]) -> OpGraph:
    """Import the model file and capture what it builds."""
    from graphplan.frontend import load_model_file, trace_model_file

    return trace_model_file(load_model_file(model, settings=settings)).graph


def load_model_graph(
    model: str,
    settings: Mapping[str, Any],
    *,
    use_cache: bool = True,
    capture: Capture = capture_now,
) -> OpGraph:
    """The graph of a model file; torch is imported only where it must be captured."""
    if not use_cache or not Path(model.partition(":")[0] if ".py:" in model else model).is_file():
        return capture(model, settings)
    request = describe_request(model, settings)
    found = find_capture(request)
    if found is not None:
        return found
    if capture is capture_now:
        from graphplan.frontend.fakes import make_fake_mode

        make_fake_mode()  # imports the rest of torch, whose own reading does not count
    with watching() as witness:
        graph = capture(model, settings)
    evidence = witness.collect()
    if evidence is not None:
        keep_capture(request, evidence, graph)
    return graph
