"""A network as pruning sees it: layers, blocks, levels of channels, and the constants that are left."""
