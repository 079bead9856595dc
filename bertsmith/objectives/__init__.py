"""Pre-training objectives: heads and losses on top of an encoder."""
