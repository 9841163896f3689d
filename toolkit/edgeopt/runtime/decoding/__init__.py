"""Texts from a decoder: tokens are chosen one after the other, the cache remembers what was said."""
