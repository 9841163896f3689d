"""A fleet: one table of workloads, devices and targets, whose cells run on the workers of a Dask cluster."""

EXTRA = "fleet"
PURPOSE = "running a fleet"
