"""From a training framework to an ONNX file that is proven to answer as the framework does."""
