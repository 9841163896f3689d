"""The command `bench`: options, run, result, summary."""
