"""Quantiles, ratios and trends with intervals."""
