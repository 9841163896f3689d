"""Drifts: their kinds, their words, and the state of a watch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

OF_BUNDLE: Final = "bundle"
"""Name of the sketch that lies in the bundle."""
SURPRISE: Final = "surprise"
"""Figure of the classes that an answer names: how rare they were."""


class DriftKind(StrEnum):
    """The kind of change in a drift."""

    DARKNESS = "darkness"
    """Pictures are darker: night, or a covered lens. It is counted separately, since night falls every day."""
    LIGHT = "light"
    """Pictures are lighter or have another contrast: fog, glare, exposure."""
    SHARPNESS = "sharpness"
    """Pictures are less sharp (focus, motion, dirt on the lens), or sharper than those of calibration."""
    NOISE = "noise"
    """The grain of the sensor changed, or what a codec leaves of it."""
    COLOUR = "colour"
    """Saturation or tint changed: another camera, another lamp."""
    NUMBERS = "numbers"
    """Inputs that are no pictures changed in level, spread, roughness or length."""
    ANSWERS = "answers"
    """Answers changed in confidence, in the number of things, or in their classes."""
    RANGE = "range"
    """Numbers lie outside the range of the INT8 model."""


WORDS: Final[Mapping[tuple[str, int], tuple[DriftKind, str]]] = {
    ("brightness", 1): (DriftKind.LIGHT, "pictures are brighter"),
    ("brightness", -1): (DriftKind.DARKNESS, "pictures are darker"),
    ("darkest", 1): (DriftKind.LIGHT, "dark places are lighter: fog, haze or glare"),
    ("darkest", -1): (DriftKind.DARKNESS, "dark places are darker"),
    ("brightest", 1): (DriftKind.LIGHT, "light places are brighter"),
    ("brightest", -1): (DriftKind.DARKNESS, "light places are darker"),
    ("contrast", 1): (DriftKind.LIGHT, "contrast is higher"),
    ("contrast", -1): (DriftKind.LIGHT, "contrast is lower: fog, or a covered lens"),
    ("sharpness", 1): (DriftKind.SHARPNESS, "pictures are sharper, or noisier"),
    ("sharpness", -1): (DriftKind.SHARPNESS, "pictures are less sharp: focus, motion or dirt on the lens"),
    ("grain", 1): (DriftKind.NOISE, "pictures are noisier"),
    ("grain", -1): (DriftKind.NOISE, "pictures are smoother: a codec, or a blurred lens"),
    ("saturation", 1): (DriftKind.COLOUR, "colours are stronger"),
    ("saturation", -1): (DriftKind.COLOUR, "colours are weaker"),
    ("tint", 1): (DriftKind.COLOUR, "colours lean to the last channel"),
    ("tint", -1): (DriftKind.COLOUR, "colours lean to the first channel"),
    ("edge_tint", 1): (DriftKind.COLOUR, "edges lean to the last channel: another light, or another camera"),
    ("edge_tint", -1): (DriftKind.COLOUR, "edges lean to the first channel: another light, or another camera"),
    ("length", 1): (DriftKind.NUMBERS, "inputs are longer"),
    ("length", -1): (DriftKind.NUMBERS, "inputs are shorter"),
    ("level", 1): (DriftKind.NUMBERS, "the mean of the input is higher"),
    ("level", -1): (DriftKind.NUMBERS, "the mean of the input is lower"),
    ("spread", 1): (DriftKind.NUMBERS, "the input is louder: its numbers spread wider"),
    ("spread", -1): (DriftKind.NUMBERS, "the input is quieter: its numbers spread less"),
    ("roughness", 1): (DriftKind.NUMBERS, "neighbours in the input differ more"),
    ("roughness", -1): (DriftKind.NUMBERS, "neighbours in the input differ less"),
    ("best_score", 1): (DriftKind.ANSWERS, "answers are surer"),
    ("best_score", -1): (DriftKind.ANSWERS, "answers are less sure"),
    ("things", 1): (DriftKind.ANSWERS, "answers name more things"),
    ("things", -1): (DriftKind.ANSWERS, "answers name fewer things"),
    (SURPRISE, 1): (DriftKind.ANSWERS, "answers name classes that were rare"),
    (SURPRISE, -1): (DriftKind.ANSWERS, "answers name the usual classes only"),
    ("beyond", 1): (DriftKind.RANGE, "inputs lie beyond what the INT8 model holds"),
    ("beyond", -1): (DriftKind.RANGE, "fewer inputs lie beyond what the INT8 model holds"),
    ("saturated", 1): (DriftKind.RANGE, "outputs lie at the end of what the INT8 model holds"),
    ("saturated", -1): (DriftKind.RANGE, "fewer outputs lie at the end of what the INT8 model holds"),
}


@dataclass(frozen=True, slots=True)
class FieldDrift:
    """A drift that began or ended."""

    kind: DriftKind
    """Its kind."""
    figure: str
    """Name of the figure that moved first, such as `sharpness`."""
    is_rise: bool
    """Whether it rose."""
    shift: float
    """Mean rank of the figure since then, as a normal score: at -2, 2 % of the calibration frames lie lower."""
    since_frame: int
    """Frame from which the figure moved; for a drift that ended, the frame at which it ended."""
    frame: int
    """Frame at which this was noticed, counted from the beginning of the watch."""
    is_over: bool = False
    """Whether the drift ended."""

    def __str__(self) -> str:
        words = WORDS[self.figure, 1 if self.is_rise else -1][1]
        if self.is_over:
            return f"{self.kind} is as usual again (it was: {words})"
        return f"{words} ({self.figure} {self.shift:+.1f} sd since frame {self.since_frame})"


@dataclass(frozen=True, slots=True)
class DriftState:
    """The state of a watch."""

    frames: int
    """Frames so far."""
    looks: int
    """Frames that were looked at."""
    began: Mapping[str, int]
    """Number of drifts that began, by kind."""
    active: tuple[FieldDrift, ...]
    """Drifts that have not ended."""
    levels: Mapping[str, float]
    """How near each figure is to its limit: 0 to 1, and 1 during a drift."""
    shifts: Mapping[str, float]
    """Mean score of each figure over about the last ten looks, in standard deviations of the sketch."""
