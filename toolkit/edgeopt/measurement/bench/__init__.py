"""The command `bench`, over a workload of any kind."""
