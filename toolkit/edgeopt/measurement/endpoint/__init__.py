"""A server of a language model as its clients see it: network, queue, first token, next tokens."""
