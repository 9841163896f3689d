"""Texts as tokens and back: tokenizers, chat templates, alphabets, and what language models need beside them."""
