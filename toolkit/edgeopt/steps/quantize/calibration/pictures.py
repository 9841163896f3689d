"""How many pictures calibrate."""

CALIBRATION_PICTURES = 128
"""Pictures that calibrate, spread over all that there are."""
