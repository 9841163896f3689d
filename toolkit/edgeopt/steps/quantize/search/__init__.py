"""The search over INT8 forms of one model."""
