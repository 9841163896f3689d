"""Pipelines of several models, measured over whole frames."""
