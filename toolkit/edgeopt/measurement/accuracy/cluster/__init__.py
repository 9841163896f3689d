"""Frames answered by the workers of a Dask cluster, as this process would answer them to the last bit."""

PURPOSE = "--cluster"
