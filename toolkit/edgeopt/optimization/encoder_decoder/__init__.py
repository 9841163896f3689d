"""Make an encoder with a decoder fast: two graphs, each in its own form."""
