"""Servers of models that answer frames: a file an interface, behind `FrameServer`; the measuring is done once."""
