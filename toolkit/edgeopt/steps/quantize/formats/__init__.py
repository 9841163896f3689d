"""How an engine wants integers written: one format, one file."""
