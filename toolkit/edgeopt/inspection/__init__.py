"""What a model is, and how it is read: `edgeopt inspect` and `edgeopt recipe`."""
