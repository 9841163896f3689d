"""Servers of models that answer frames: a file an interface, behind `FrameEndpoint`; the measuring is done once."""
