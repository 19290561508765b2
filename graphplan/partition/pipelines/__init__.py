"""Pipelines of stages that follow one another, for planners that go by the slowest stage."""
