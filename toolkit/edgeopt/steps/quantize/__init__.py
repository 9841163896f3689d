"""The step `quantize`: a float model to the fastest integer form that keeps its answers."""
