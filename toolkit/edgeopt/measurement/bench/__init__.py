"""The command `bench`: options, run, result, summary."""

from edgeopt.measurement.bench.options import BenchOptions

__all__ = ["BenchOptions"]
