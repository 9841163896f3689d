"""Measurements in fresh processes: start to first answer, peak memory."""
