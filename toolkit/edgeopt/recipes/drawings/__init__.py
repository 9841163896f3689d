"""Answers drawn on pictures."""
