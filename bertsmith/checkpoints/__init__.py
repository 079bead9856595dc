"""Model folders, read and written in Hugging Face's format."""
