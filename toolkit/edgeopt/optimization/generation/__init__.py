"""A language model made fast for the lengths of its prompts and answers, and proven to be."""
