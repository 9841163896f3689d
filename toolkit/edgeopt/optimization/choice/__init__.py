"""Which candidate is chosen, by proven speed and proven accuracy."""
