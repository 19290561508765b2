"""Costs: hardware files, profile tables, and the cost model."""
