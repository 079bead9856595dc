"""From characters to piece ids: normalization, vocabularies, WordPiece. No torch."""
