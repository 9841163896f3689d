"""Decoders of language models, written as ONNX from their weights and configuration: no torch, no trace."""
