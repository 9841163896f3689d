"""Verbs, one file each: what a command and the function of the same name in Python both call, for every kind."""
