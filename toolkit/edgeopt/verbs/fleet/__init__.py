"""A fleet: one table of workloads, devices and targets, whose cells run on the workers of a Dask cluster."""

PURPOSE = "running a fleet"
