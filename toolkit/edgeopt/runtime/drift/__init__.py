"""Drift: whether frames in the field are still like those that a model was made with.

A bundle keeps a `Sketch` of the calibration frames: a few figures of each frame and of its answer. A `DriftWatch` looks
at every 15th frame, and says where the figures of the field no longer come from the same distribution.
"""
