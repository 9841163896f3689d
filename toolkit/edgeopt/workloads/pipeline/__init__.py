"""Several models with the app's own functions between them: a `pipeline.toml`, or the bundle of one."""

from __future__ import annotations

from edgeopt.workloads import Kind
from edgeopt.workloads.pipeline.options import CHECKS, OPTIONS


def _claims(source: str) -> bool:
    from pathlib import Path

    from edgeopt.runtime.pipelines.bundle import is_pipeline_bundle
    from edgeopt.runtime.pipelines.description import is_description

    return is_pipeline_bundle(Path(source)) or is_description(Path(source))


def _require(source: str) -> None:
    """Accept anything: a pipeline is claimed only where it is there."""
    del source


_BY_STAGE = "a pipeline has no whole graph"
KIND = Kind(
    name="pipeline",
    noun="a pipeline",
    place=40,
    claims=_claims,
    options=OPTIONS,
    package=__name__,
    refusals={
        "inspect": (_BY_STAGE, "inspect the model of a stage"),
        "serve": ("pipelines are not served so far", "call edgeopt.Pipeline.load(...) in the app"),
    },
    require=_require,
    checks=CHECKS,
)
