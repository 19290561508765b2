"""The rules by name, each with what it proves when it holds."""

from __future__ import annotations

RULES: dict[str, str] = {
    # Stages
    "op-once": "Every op of the model is in exactly one stage, and no stage is empty.",
    "stage-acyclic": "Data never flows in a circle between stages.",
    "stage-convex": "No path leaves a stage and comes back to it.",
    "stage-order": "Stages are numbered in the order in which data flows.",
    "stage-edges": "Stage edges are exactly the values that pass between stages, each once.",
    "replica-split": "Micro-batches split evenly over the replicas of a stage.",
    "device-exists": "Stages stand on devices that the cluster has.",
    "device-groups": "Two stages share all of their devices or none.",
    # Prices
    "price-stages": "Prices are for these stages: same number, devices and micro-batch sizes.",
    "price-edges": "Prices know exactly the edges of the stages, and along which gradients return.",
    "price-batch": "Prices are for the batch of the training.",
    "price-memory": "No device is given more memory than the cluster lets it use.",
    "price-values": "Seconds and bytes are neither negative nor absurd.",
    "price-weights": "The bytes of a stage hold all copies of its weights that training makes.",
    "price-buckets": "Every gradient of a replicated stage is reduced once, when it is complete.",
    "zero": "Every share of what replicas share is held by one of them, under policy flush only.",
    "price-transfers": "Edges between different devices have messages that reach every reader.",
    # Program
    "program-text": "The program can be read and has one line for each device.",
    "foreign": "Devices run only tasks and transfers that exist, of stages that they host.",
    "task-once": "Every forward and backward runs once: F and B, or F, I and W.",
    "task-order": "Micro-batches run in order, each task after what it needs on its device.",
    "replica-lines": "Replicas of a stage run equal lines.",
    "transfer-ends": "Every transfer that is needed is posted once at both of its ends.",
    "transfer-order": "Sends stand behind what makes their tensor, receives before what reads it.",
    "deadlock": "The program runs to its end when links complete operations in the order posted.",
    # Weights
    "policy": "Warm-ups and accumulation fit the policy, the batch and the edges.",
    "update": "Reductions and updates are where the policy wants them, none missing or too many.",
    "version": "Under an asynchronous policy every forward is as stale as its warm-up says.",
    # Memory and prediction
    "memory": "Every device, replayed task by task, stays within its memory.",
    "prediction": "Predicted peaks are those of the replay; steps are not shorter than their work.",
    "bound": "Nothing claims to be better than its own lower bound.",
}
