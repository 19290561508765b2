"""Stages: the compute of one device, from the captured graph to the tasks that run."""
