"""Pictures of a prompt as the encoder of a language model sees them."""
