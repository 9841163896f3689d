"""GGUF files: what they hold, read bit for bit, and written for other engines."""
