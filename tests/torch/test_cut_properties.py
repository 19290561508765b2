"""Random models x random legal cuts: loss, gradients and buffers equal those of the whole model."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphplan.frontend import trace_module
from tests.torch.comparing import assert_same_step, call_model, run_cut, run_step
from tests.torch.cuts import random_cut
from tests.torch.random_models import WIDTH, RandomModel, random_models

Recipe = tuple[list[tuple[str, int, int]], int]


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(random_models(), st.integers(0, 1 << 30))
def test_any_legal_cut_of_any_model_is_exact(made: Recipe, seed: int) -> None:
    """The captured model equals eager to the last bit, its cuts to 1e-6."""
    recipe, num_inputs = made
    torch.manual_seed(seed)
    model = RandomModel(recipe, num_inputs)
    captured = trace_module(model, lambda b: ([torch.randn(b, WIDTH) for _ in range(num_inputs)],))
    batch = ([torch.randn(5, WIDTH) for _ in range(num_inputs)],)
    eager = run_step(model, lambda: call_model(model, batch))
    assert_same_step(run_step(model, lambda: captured.run(batch)), eager)
    if any(kind == "dropout" for kind, _, _ in recipe):
        return  # another order of the ops draws other masks
    for attempt in range(4):
        stages = random_cut(captured.graph, 2 + attempt, seed + attempt)
        assert_same_step(run_cut(captured, model, stages, batch), eager, tolerance=1e-6)
