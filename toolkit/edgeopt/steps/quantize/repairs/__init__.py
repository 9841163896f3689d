"""Repairs of what rounding breaks: one repair, one file."""
