"""Facts of a model, and how it is read: `edgeopt inspect` and `edgeopt recipe`."""
