"""How long a language model takes to its first token, and for each one after it."""
