"""From a model to candidates, a choice, a bundle and a report."""

from edgeopt.optimization.options import Options

__all__ = ["Options"]
