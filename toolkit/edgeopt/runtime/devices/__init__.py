"""The targets that this machine can run, and what others lack."""
