"""How a model is fed, read and scored."""
