"""Scales and zero points of weights and activations."""
