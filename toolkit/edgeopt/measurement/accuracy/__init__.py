"""Accuracy on labelled frames, with what compares two models on the same pictures."""
