"""Memory, energy, CPU time and the state of the machine."""
