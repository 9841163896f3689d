"""The machine that computes for this process where it is another one: a phone, which has no Python.

As long as `computing_on` lasts, whatever asks for the processor, its threads or the facts of the machine hears of that
one, and models are opened there. What only judges (a reference without optimizations, calibration) stays here: it opens
its engine itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from edgeopt.errors import UnavailableError


class PlaceLostError(UnavailableError):
    """A machine that was reached before is gone; what was measured until then counts."""


class ComputingPlace(Protocol):
    """Another machine, as far as this layer asks for it; layers above ask for more."""

    @property
    def address(self) -> str:
        """Its address, as `--on` takes it."""
        ...

    @property
    def processor(self) -> Any:
        """A `Processor`: its own."""
        ...

    @property
    def cpu_name(self) -> str:
        """The name of its processor."""
        ...

    @property
    def system(self) -> str:
        """Its system, as `platform.system` would name it."""
        ...

    @property
    def logical_cores(self) -> int:
        """How many threads it runs at once."""
        ...

    @property
    def usual_threads(self) -> int:
        """Its physical cores of the fastest kind."""
        ...

    def environment(self, subject: Mapping[str, Any], info: Mapping[str, Any]) -> Any:
        """Return an `Environment`: its own facts with these."""
        ...


_places: list[Any] = []


def current_place() -> Any:
    """Return the `ComputingPlace`; None: this machine does."""
    return _places[-1] if _places else None


def machine_in_words() -> str:
    """Return what a message calls the machine that computes."""
    return current_place().address if _places else "this machine"


@contextmanager
def computing_on(place: ComputingPlace) -> Iterator[None]:
    """Let another machine compute for this whole process, its threads too, as long as the `with` lasts."""
    _places.append(place)
    try:
        yield
    finally:
        _places.pop()
