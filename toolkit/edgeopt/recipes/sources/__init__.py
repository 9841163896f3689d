"""What a model is asked that is neither a picture nor tensors, one file each; the file name is what one is called.

Each ends in `SOURCE`, a `SourceKind` of `recipes/inputs/frames.py`, which opens pictures, videos and tensors itself.
"""
