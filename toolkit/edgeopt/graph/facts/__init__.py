"""Facts of a graph, read without running it."""
