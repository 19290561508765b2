"""Schedules: the order of every micro-batch on every device, as values."""
