"""The commands, one small file per group."""
