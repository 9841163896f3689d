"""Bundles on disk: the folder, the parts of a manifest, stored models, several targets."""
