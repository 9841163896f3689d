"""The computations behind metrics: matches, areas, distances of texts, points."""
