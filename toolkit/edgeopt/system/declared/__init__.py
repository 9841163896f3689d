"""Options, targets, parts of a registry and optional packages: what is declared, and checked where it is read."""
