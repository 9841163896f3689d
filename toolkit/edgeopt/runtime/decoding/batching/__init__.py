"""Several texts at once on one language model: their next tokens are one run, prompts come in parts beside it."""
