"""What a graph tells of a model without running it."""
