"""Servers that speak OpenAI's interface, asked from their client's side."""

from __future__ import annotations

from edgeopt.workloads import Kind
from edgeopt.workloads.endpoint.options import OPTIONS


def _claims(source: str) -> bool:
    return "://" in source  # of what scheme is for the client to say


def _require(source: str) -> None:
    """Accept anything: whether a server answers is known when it is asked."""
    del source


_ELSEWHERE = "a server is measured, and nothing else is done with it"
_REMEDY = "edgeopt bench --endpoint URL"
KIND = Kind(
    name="endpoint",
    noun="a server",
    place=10,
    claims=_claims,
    options=OPTIONS,
    package=__name__,
    refusals=dict.fromkeys(("inspect", "compare", "check", "optimize", "run", "serve"), (_ELSEWHERE, _REMEDY)),
    require=_require,
)
