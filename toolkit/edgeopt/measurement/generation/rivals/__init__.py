"""Other engines of language models that `compare --rivals` measures beside ours: each file here is one.

The file's name is the rival's, with `_` for what a name of Python cannot hold, and it ends in `RIVAL`. An engine runs
in a process of its own (`_worker.py`), which is handed tokens and no text.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import NotFoundError
from edgeopt.system.declared import registry

EXTRA = "rivals"
OWN = "_own"
"""The file with our own engine, which answers in such a process too: what is compared is then measured alike."""


class RivalWeights(StrEnum):
    """Files that rivals read, where the user names none of their own."""

    GGUF = "gguf"
    """A file of llama.cpp, which edgeopt writes from the weights in float."""
    GRAPH = "graph"
    """The compared ONNX file itself."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A model for an engine to open."""

    file: Path
    """Its file or folder."""
    threads: int
    context: int
    """Tokens of prompt and answer for which memory is reserved."""
    form: str = ""
    """How weights are kept, in the rival's word; empty: as the file has it."""
    work: Path = Path()
    """A folder for files of its own."""
    entries: Mapping[str, str] | None = None
    """Entries of our own session."""


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """One answer, greedy, of exactly the tokens asked for."""

    tokens: tuple[int, ...]
    begun_ns: int
    """Instant on the monotonic clock, which all processes share."""
    at_ns: tuple[int, ...]
    """When each token was there, since it began."""


class AnsweringEngine(Protocol):
    """An engine that is open with its model."""

    @property
    def settings(self) -> Mapping[str, str]:
        """All that its speed depends on: version, threads, batches, cache, build."""
        ...

    def answer(self, prompt: Sequence[int], count: int) -> EngineAnswer:
        """Answer a prompt from an empty cache with the likeliest tokens, whatever ends a text."""
        ...

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return (tokens, vocabulary) logits behind each token of a text."""
        ...


@dataclass(frozen=True, slots=True)
class RivalEngine:
    """One engine beside ours."""

    name: str
    """As the user writes it."""
    package: str
    """As pip knows it."""
    module: str
    """As Python imports it."""
    weights: RivalWeights
    forms: Mapping[int, str]
    """The form by the bits of the compared model's weights; none: it reads the same file."""
    open: Callable[[EngineRequest], AnsweringEngine]
    """Called in the rival's own process."""
    more_forms: tuple[str, ...] = ()
    """Further forms that it makes where asked."""
    own_files: str = ""
    """Files that the user may name in place of one that edgeopt writes."""
    prepare: Callable[[EngineRequest], Path] | None = None
    """Makes the file that is opened of the one written for it, once, in a process of its own; None: it is opened."""

    @property
    def why_unavailable(self) -> str:
        """Why it does not run here; empty: nothing that is known before it is opened."""
        if find_spec(self.module):
            return ""
        return f"{self.package} is not installed: pip install {self.package}, or 'edgeopt[{EXTRA}]' for all rivals"

    def form_for(self, bits: int) -> str:
        """Return the form with as many bits as the compared model has."""
        return self.forms.get(bits, "")


def names() -> tuple[str, ...]:
    """Return the names of all rivals, as users write them."""
    package = sys.modules[__name__]
    rivals: list[RivalEngine] = [registry.load(package, name).RIVAL for name in registry.names(package)]
    return tuple(rival.name for rival in rivals)


def listed() -> str:
    """Return the names for a help text."""
    return ", ".join(names())


def find(name: str) -> RivalEngine:
    """Return a rival by its name.

    Raises:
        NotFoundError: If there is none.
    """
    package = sys.modules[__name__]
    file = file_of(name)
    if file not in registry.names(package):
        raise NotFoundError("rival", name, names())
    rival: RivalEngine = registry.load(package, file).RIVAL
    return rival


def link_file(file: Path, place: Path) -> None:
    """Put a file into another place without copying it, where the system can."""
    from edgeopt.graph.files.outside import PieceLayout, StoredPiece

    place.parent.mkdir(parents=True, exist_ok=True)
    PieceLayout((StoredPiece(file, 0, file.stat().st_size),), (0,), file).write(place, may_link=True)


def file_of(name: str) -> str:
    """Return the name of a rival's file."""
    return re.sub(r"\W", "_", name.strip().lower())
