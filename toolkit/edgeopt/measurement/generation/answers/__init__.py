"""Single answers of models that write tokens, and their times."""
