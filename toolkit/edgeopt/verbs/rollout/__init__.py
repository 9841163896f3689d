"""Rollout: a new bundle beside the running one, proven where it will run, then in its place, and the way back."""
