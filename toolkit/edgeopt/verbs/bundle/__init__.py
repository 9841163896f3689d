"""Bundles for several targets: made of bundles for one, and taken apart again."""
