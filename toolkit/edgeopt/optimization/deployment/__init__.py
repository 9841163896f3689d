"""What goes into a bundle: the choice, what it embeds, and lighter models."""
