"""Samples that are neither pictures nor tensors, one file a kind; the file name is the kind's name.

Each ends in `SOURCE`, a `SourceKind` of `recipes/inputs/frames.py`, which opens pictures, videos and tensors itself.
"""
