"""ONNX graphs and tensors: read, edited, compared."""
