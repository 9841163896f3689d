"""Which layers and tensors stay in float, and why."""
