"""Workers on this machine and on others, by way of Dask: how they are reached, and the files that they are sent."""

EXTRA = "fleet"
"""Extra that brings Dask."""
