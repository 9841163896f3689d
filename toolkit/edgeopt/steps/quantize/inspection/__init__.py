"""What became of a quantized model, tensor by tensor."""
