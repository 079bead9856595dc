"""Downstream tasks: readers, heads, decoding, metrics."""
