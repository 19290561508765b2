"""LocalSGD beside PipeDream in simulated time (arXiv 2606.03498).

F and B take one tick each. PipeDream never drains: N micro-batches through S stages take
2 N + 2 (S - 1) ticks. LocalSGD runs R replicas of the model through the same pipeline, averages
them after H local steps of each, and drains the pipeline for every averaging.
"""

from __future__ import annotations


def pipedream_ticks(num_stages: int, num_micro_batches: int) -> int:
    """Ticks of PipeDream's asynchronous pipeline."""
    return 2 * num_micro_batches + 2 * (num_stages - 1)


def localsgd_ticks(
    num_stages: int, num_micro_batches: int, *, num_replicas: int, local_steps: int
) -> int:
    """Ticks of LocalSGD: one drain for every round of R * H micro-batches."""
    rounds = -(-num_micro_batches // (num_replicas * local_steps))
    return 2 * num_micro_batches + 2 * (num_stages - 1) * rounds
