"""Exports: a plan in the words of other runtimes, or a clear refusal with the reason."""
