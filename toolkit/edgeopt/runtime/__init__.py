"""The deployable runtime: a bundle in, answers out."""
