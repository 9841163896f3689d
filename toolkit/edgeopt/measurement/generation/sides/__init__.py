"""Language models side by side: `compare` and `check`."""
