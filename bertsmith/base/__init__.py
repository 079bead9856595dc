"""Configuration, files, seeds and the log: what every other folder stands on."""
