"""The health of a server: its path, and what it answers those who look after services."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from edgeopt.runtime.serve.watching.tally import Tally

HEALTH: Final = "/healthz"
"""Path that is asked without a key: its answer says nothing that is secret."""


def health_of(names: Sequence[str], tallies: Sequence[Tally]) -> dict[str, Any]:
    """Return whether models are loaded, and how many requests they have.

    Args:
        names: Of all models.
        tallies: Of those that were opened.
    """
    opened = {tally.name: tally for tally in tallies}
    models = {name: _of_model(opened.get(name)) for name in names}
    if len(models) == 1:
        return {"status": "ok", "model": names[0], **models[names[0]]}
    return {"status": "ok", "models": models}


def _of_model(tally: Tally | None) -> dict[str, Any]:
    if tally is None:
        return {"loaded": False, "running": 0, "waiting": 0}
    return {"loaded": tally.held.is_loaded, "running": tally.running, "waiting": tally.waiting}
