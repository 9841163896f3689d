"""The contents of a bundle: the choice, its embedded parts, and lighter models."""
