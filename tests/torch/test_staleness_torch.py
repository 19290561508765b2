"""The torch models of the staleness experiments replay as the exact ones do."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from graphplan.nouns.policy import PolicyName, WeightPolicy
from graphplan.schedule.steady import build_steady
from graphplan.staleness.models import ProductModel
from graphplan.staleness.optimizers import Sgd
from graphplan.staleness.replay import replay_schedule
from graphplan.staleness.shapes import make_chain
from tools.staleness_torch import StagedModel, StageLayout, Views

NUM_STAGES = 4


class HalfModel(StagedModel):
    """Two runs that start from one half everywhere, in double precision."""

    def start_weights(self, stage: int) -> Tensor:
        """One half."""
        return torch.full((2, 1), 0.5, dtype=torch.float64)


def multiply(stage: int, views: Views, inputs: tuple[Tensor, ...], micro_batch: int) -> Tensor:
    """a *= w_s; the loss is (a - 1)^2 / 2."""
    value = views("w")[:, 0]
    output = inputs[0] * value if inputs else value * 1
    return (output - 1) ** 2 / 2 if stage == NUM_STAGES - 1 else output


@pytest.mark.parametrize(
    "name", ["naive", "stash", "vertical-sync", "2bw", "predict", "spectrain1", "spectrain2"]
)
def test_torch_replays_equal_exact_ones(name: PolicyName) -> None:
    """To 1e-12 in double precision, also where B reads other weights than F; two rates at once."""
    accumulate = NUM_STAGES - 1 if name == "2bw" else 1
    priced = make_chain(NUM_STAGES, num_micro_batches=6 * accumulate)
    policy = WeightPolicy(name=name, warmups=(3, 2, 1, 0), accumulate=accumulate)
    schedule = build_steady(priced, policy)
    layouts = [StageLayout({"w": (1,)})] * NUM_STAGES
    rates = torch.tensor([[1 / 8], [1 / 16]], dtype=torch.float64)
    replay = replay_schedule(
        priced,
        schedule,
        policy,
        HalfModel(layouts, multiply, (0, 0)),
        Sgd(rate=rates, momentum=0.5),
    )
    for run, rate in enumerate((Fraction(1, 8), Fraction(1, 16))):
        exact = replay_schedule(
            priced, schedule, policy, ProductModel(), Sgd(rate=rate, momentum=Fraction(1, 2))
        )
        found = [float(weights[run, 0]) for weights in replay.weights]
        assert found == pytest.approx([float(each) for each in exact.weights], abs=1e-12)
