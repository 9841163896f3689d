"""Charts and pictures as data: what is shown, in which unit, and what it says in words. A format draws them.

Texts are ready to be read, units included; numbers are for the place on the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

Facts = tuple[tuple[str, str], ...]
"""Label and text, units included: what is told of a mark beside its place."""


class AxisScale(StrEnum):
    """How a number becomes a place on an axis."""

    LINEAR = "linear"
    LOG = "log"
    """A logarithm, for numbers above zero."""
    TAIL = "tail"
    """A scale of percentiles from 0 to below 100: 90, 99 and 99.9 lie equally far apart."""


class Emphasis(StrEnum):
    """How much a mark stands out."""

    CHOSEN = "chosen"
    FIRST = "first"
    """The mark with which the others are compared."""
    PLAIN = "plain"
    FAINT = "faint"
    """Beaten by another, or of little weight."""


@dataclass(frozen=True, slots=True)
class Axis:
    """The quantity along one direction of a chart."""

    label: str
    unit: str = ""
    scale: AxisScale = AxisScale.LINEAR
    from_zero: bool = False
    """Whether zero is on it, however far the marks are from it."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95 % interval, where one is known."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Limit:
    """A line that should not be crossed."""

    label: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """The fields of every figure."""

    title: str
    text: str
    """The figure's message in a sentence, for readers who cannot see it."""
    file: str = ""
    """A picture of it relative to the folder in which the document lies; empty: there is none."""


@dataclass(frozen=True, slots=True)
class ChartPoint:
    """One thing by two figures."""

    name: str
    x: Estimate
    y: Estimate
    facts: Facts = ()
    emphasis: Emphasis = Emphasis.PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Points(Figure):
    """Things by two figures each."""

    x: Axis
    y: Axis
    points: tuple[ChartPoint, ...]
    limit: Limit | None = None
    """Limit on the x axis."""
    paths: tuple[tuple[str, ...], ...] = ()
    """Names of points that a line joins, in its order."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One thing as a sum of parts."""

    name: str
    parts: tuple[float, ...]
    """As long as `Bars.parts`."""
    facts: Facts = ()
    tail: float | None = None
    """How far a rare case goes: a thin line behind the bar."""
    emphasis: Emphasis = Emphasis.PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars(Figure):
    """Things as sums of parts, one below the other."""

    axis: Axis
    parts: tuple[str, ...]
    """Names of the parts of each bar, in order."""
    bars: tuple[Bar, ...]
    tail: str = ""
    """Name of the value at which `Bar.tail` ends: `p99`."""
    limit: Limit | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """One thing over something that goes on."""

    name: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    facts: Facts = ()
    emphasis: Emphasis = Emphasis.PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines(Figure):
    """Things over something that goes on: time, a percentile, a rate."""

    x: Axis
    y: Axis
    lines: tuple[Curve, ...]
    limit: Limit | None = None
    """Limit on the y axis."""
    is_dotted: bool = False
    """Whether each value is a dot of its own, and no line joins it with the next one."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure with its interval, and what is allowed of it."""

    name: str
    estimate: Estimate
    facts: Facts = ()
    allowed: float | None = None
    emphasis: Emphasis = Emphasis.PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals(Figure):
    """Figures with their intervals, one below the other, against a value that means no difference."""

    axis: Axis
    rows: tuple[Row, ...]
    neutral: float = 1.0
    margin: float = 0.0
    """Within `neutral / (1 + margin)` to `neutral * (1 + margin)` nothing differs."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One of many things in order."""

    name: str
    kind: str
    facts: Facts = ()
    is_refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells(Figure):
    """Many things in order, and which kind each of them is of."""

    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class PicturePair:
    """One picture twice: files relative to the folder in which the document lies."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeAfter(Figure):
    """Pictures of the same thing by two models."""

    before: str
    """Name of the model that made the first pictures."""
    after: str
    pairs: tuple[PicturePair, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture(Figure):
    """Nothing but its file."""
