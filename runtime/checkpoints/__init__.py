"""Checkpoints: what they store, and how it is read and written."""
