"""The command `compare`: several models in turns."""
