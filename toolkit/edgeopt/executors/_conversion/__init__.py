"""Parts that the converters of several engines share: constants, shapes and windows as ONNX means them."""
