"""From a model to candidates, a choice, a bundle and a report."""

from edgeopt.pipeline.plan import Options

__all__ = ["Options"]
