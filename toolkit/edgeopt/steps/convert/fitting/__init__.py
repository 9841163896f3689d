"""Blocks of 4 bits that are fitted to a calibration text."""
