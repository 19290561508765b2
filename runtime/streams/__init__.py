"""Streams: batches that follow one another without a drain between them."""
