"""Speech: sounds of any length become segments of text with their times."""
