"""Scores, equal to the official ones."""
