"""The bricks: rows without padding, attention, layers, heads. Knows no text and no family."""
