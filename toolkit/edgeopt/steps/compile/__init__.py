"""The step `compile`: one vendor, one file."""
