"""The deployable runtime: a bundle in, answers out."""

from edgeopt.runtime.runtime import Runtime

__all__ = ["Runtime"]
