"""Search for the likeliest answer with several beams."""
