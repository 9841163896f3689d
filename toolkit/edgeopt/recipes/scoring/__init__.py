"""What metrics are computed from: matches, areas, distances of texts, points."""
