"""Models that answer frames: one input, one answer, again and again."""

from __future__ import annotations

from edgeopt.workloads import Kind
from edgeopt.workloads.frames.options import CHECKS, OPTIONS


def _claims(source: str) -> bool:
    """Return that what no other kind claims is a model, and a wrong name too."""
    del source
    return True


def _require(source: str) -> None:
    from pathlib import Path

    from edgeopt.graph.files.foreign_models import require_no_foreign
    from edgeopt.graph.model import find_model

    if Path(source).exists():
        require_no_foreign(Path(source))
    else:
        find_model(source)


KIND = Kind(
    name="frames",
    noun="a single model of frames",
    place=100,
    claims=_claims,
    options=OPTIONS,
    package=__name__,
    refusals={},
    require=_require,
    checks=CHECKS,
    phone_reason="",
)
