"""Measuring a model that answers frames: options, load, passes beside it, result."""
