"""A model opened to be measured: bound to its recipe, its engine held to right answers."""
