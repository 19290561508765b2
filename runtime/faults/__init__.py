"""Faults: how a failed, hanging or vanished rank is seen, and how its cause is told."""
