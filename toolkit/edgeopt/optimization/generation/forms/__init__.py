"""The forms of a language model: how each is made, of what, and what it may take."""
