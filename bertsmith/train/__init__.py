"""Optimizers, schedules, the loop, and what a run needs to go on."""
