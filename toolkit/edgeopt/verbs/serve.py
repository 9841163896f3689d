"""`serve`: one workload or several answer over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgeopt.errors import EdgeoptError
from edgeopt.running.serving import Served, serve
from edgeopt.verbs._perform import prepare


def served(
    sources: Sequence[str], values: Sequence[Mapping[str, Any]], tell: Callable[[str], None] = lambda _: None
) -> Served:
    """Serve until SIGTERM or Ctrl-C.

    Args:
        sources: What is served: one, or several of any kinds.
        values: Fields of the options of each one's kind that differ, by name.
        tell: Hears a line for each model, and warnings.

    Raises:
        EdgeoptError: If a kind refuses to be served, or the work fails.
    """
    if len(sources) > 1 and any(each.get("name") for each in values):
        raise EdgeoptError(
            f"--name is for one model, and {len(sources)} are named", remedy="leave it out: each has its recipe's name"
        )
    models = []
    for source, own in zip(sources, values, strict=True):
        kind, options = prepare("serve", (source,), None, own)
        models.append(kind.module("serve").hosted(source, options))
    return serve(models, tell)
