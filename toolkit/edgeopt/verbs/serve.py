"""`serve`: one workload or several answer over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from edgeopt.errors import EdgeoptError
from edgeopt.running.serving import Hosted, Served
from edgeopt.running.serving import serve as serve_models
from edgeopt.running.serving_thread import RunningServer
from edgeopt.verbs._perform import prepare, split_values, with_options_of_kinds
from edgeopt.verbs.wishes import ServeWishes

Say = Callable[[str], None]


@with_options_of_kinds("serve")
def serve(
    *workloads: str | Path, options: object = None, say: Say | None = None, **wishes: Unpack[ServeWishes]
) -> RunningServer:
    """Answer requests over HTTP, in threads of this program; it returns when the server listens.

    `with edgeopt.serve("bundle", port=0) as server:` serves while the block runs; `edgeopt.serve("bundle").wait()`
    until Ctrl-C or SIGTERM, as the command does.

    Args:
        *workloads: What is served: one, or several of any kinds, which are opened when they are first asked for.
        options: How, the dataclass of their kind; None: all defaults.
        say: Hears a line for each model, and warnings.
        **wishes: Fields of the options that differ: `port=0`, `slots=4`, `time_limit_s=30`. Of several workloads each
            takes those that its kind knows.

    Returns:
        The server, which listens.

    Raises:
        EdgeoptError: If a kind refuses to be served, a wish is for none of them, the only one does not open, the port
            is taken, or the extra `serve` is not installed.
    """
    sources = tuple(map(str, workloads))
    if not sources:
        raise EdgeoptError("nothing is named that could be served", remedy="name a bundle or a language model first")
    models = _hosted(sources, options, split_values("serve", sources, wishes))
    return RunningServer(lambda begun: serve_models(models, say or _ignore, begun))


def served(sources: Sequence[str], values: Sequence[Mapping[str, Any]], say: Say | None = None) -> Served:
    """Serve until SIGTERM or Ctrl-C, in the main thread.

    Args:
        sources: What is served: one, or several of any kinds.
        values: Fields of the options of each one's kind that differ, by name.
        say: Hears a line for each model, and warnings.

    Raises:
        EdgeoptError: If a kind refuses to be served, or the work fails.
    """
    return serve_models(_hosted(sources, None, values), say or _ignore)


def _hosted(sources: Sequence[str], options: object, values: Sequence[Mapping[str, Any]]) -> list[Hosted]:
    """Return what is served, by the kind of each.

    Raises:
        EdgeoptError: If a kind refuses to be served, or options contradict each other.
    """
    is_named = bool(getattr(options, "name", "")) or any(each.get("name") for each in values)
    if is_named and len(sources) > 1:
        raise EdgeoptError(
            f"--name is for one model, and {len(sources)} are named", remedy="leave it out: each has its recipe's name"
        )
    models = []
    for source, own in zip(sources, values, strict=True):
        kind, chosen = prepare("serve", (source,), options, own)
        models.append(kind.module("serve").hosted(source, chosen))
    return models


def _ignore(_: str) -> None:
    """Hear nothing."""
