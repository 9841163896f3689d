"""From a model to candidates, a choice, a bundle and a report."""

from edgeopt.pipeline.options import Options

__all__ = ["Options"]
