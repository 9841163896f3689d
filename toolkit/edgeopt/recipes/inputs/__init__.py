"""What goes into a model: pictures, sounds, texts and arrays, as tensors."""
