"""Files of labelled examples, read into examples that know their line."""
