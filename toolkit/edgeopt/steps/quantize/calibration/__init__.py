"""Ranges, histograms and samples of the tensors of a model, from pictures."""

CALIBRATION_PICTURES = 128
"""Pictures that calibrate, spread over all that there are."""
