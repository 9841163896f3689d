"""Repairs of the accuracy that rounding loses: one repair, one file."""
