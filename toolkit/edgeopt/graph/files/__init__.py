"""Model files: their weights outside, what is damaged in them, and what is no ONNX file."""
