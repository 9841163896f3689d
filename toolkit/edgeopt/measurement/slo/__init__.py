"""How many replicas keep an objective, simulated from measured service times."""
