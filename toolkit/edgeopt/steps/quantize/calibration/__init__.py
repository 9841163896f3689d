"""What pictures show of the tensors of a model."""
