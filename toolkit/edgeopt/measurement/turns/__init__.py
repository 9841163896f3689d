"""Models in turns, so that a drifting machine slows all alike."""
