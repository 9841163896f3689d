"""Models that write token after token: language models, and encoders with decoders, whose prompt is first encoded."""

from __future__ import annotations

from edgeopt.workloads import Kind
from edgeopt.workloads.generation.options import CHECKS, OPTIONS


def _claims(source: str) -> bool:
    from edgeopt.workloads.generation.source import is_encoder_decoder, is_language_model

    return is_encoder_decoder(source) or is_language_model(source)


def _exports(source: str, task: str) -> bool:
    from edgeopt.export.export import names_decoder, names_pair

    return names_pair(source, task) or names_decoder(source, task)


def _require(source: str) -> None:
    from edgeopt.running.writing import find_language_model

    find_language_model(source)


KIND = Kind(
    name="generation",
    noun="a language model",
    place=20,
    claims=_claims,
    options=OPTIONS,
    package=__name__,
    refusals={},
    require=_require,
    checks=CHECKS,
    exports=_exports,
)
