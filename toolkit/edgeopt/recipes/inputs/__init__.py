"""The inputs of a model: pictures, sounds, texts and arrays, as tensors."""
