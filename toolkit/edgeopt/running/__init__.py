"""Bundles and models that run for a person or behind a port: `edgeopt run` and `edgeopt serve`."""
