"""Ranges, histograms and samples of the tensors of a model, from pictures."""
