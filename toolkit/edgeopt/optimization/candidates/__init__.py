"""Candidates made, measured and scored, and the engines that run them."""
