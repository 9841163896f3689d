"""The integer tensors of a quantized model: their grids, their errors, and the kernels that run them."""
