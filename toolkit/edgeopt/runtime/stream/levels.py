"""The levels a stream may go down: all frames, every second one, lighter models of the bundle, a smaller input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from edgeopt.runtime.bundles.parts import Artefact, Expected
from edgeopt.runtime.pipelines.pipeline import Pipeline
from edgeopt.runtime.runtime import Runtime
from edgeopt.runtime.stream.degradation import LevelLoad
from edgeopt.runtime.stream.runner import Runner, name_of, runner_of

FULL = "full"
_FULL_LOAD: Final = LevelLoad()
_AREA: Final = 0.5
"""Share of the full input that a smaller one has."""
_STEP: Final = 32
"""Pixels: networks halve their input five times."""


@dataclass(frozen=True, slots=True)
class Rung:
    """The model that runs frames at one level."""

    name: str
    runner: Runner
    keep_every: int = 1
    """One frame of so many is run."""

    @property
    def artefact(self) -> str:
        """File of the model, or name of the pipeline."""
        return name_of(self.runner)


@dataclass(frozen=True, slots=True)
class Level:
    """A rung that may have to be opened first."""

    name: str
    open: Callable[[], Runner]
    load: LevelLoad = _FULL_LOAD


def levels_of(given: Runtime | Pipeline, *, smaller_input: bool = False) -> tuple[Level, ...]:
    """Return the levels of a bundle, full quality first; a pipeline has no lighter models.

    Args:
        given: What runs at level 0.
        smaller_input: Whether the last level may be the lightest model at half the area, where its input is free.
    """
    full = runner_of(given)
    levels = [Level(FULL, lambda: full), Level("every 2nd frame", lambda: full, LevelLoad(keep_every=2))]
    return tuple(levels) if isinstance(given, Pipeline) else (*levels, *_lighter(given, smaller_input=smaller_input))


def _lighter(runtime: Runtime, *, smaller_input: bool) -> Iterator[Level]:
    lighter = [
        other for other in reversed(runtime.bundle.lighter) if other != runtime.artefact
    ]  # the fastest comes last
    for one in lighter:
        load = LevelLoad(time_ratio=_time_ratio(one.expected, runtime.artefact.expected))
        yield Level(f"lighter model {one.file}", partial(runtime.with_artefact, one), load)
    size = smaller_size(runtime) if smaller_input else None
    if size is not None:
        artefact = lighter[-1] if lighter else runtime.artefact
        yield Level(
            f"input of {size[0]}x{size[1]}", partial(_with_size, runtime, artefact, size), LevelLoad(time_ratio=None)
        )


def _time_ratio(lighter: Expected, full: Expected) -> float | None:
    """Return how a lighter model's frame compares in time as both were measured; None: one of them was not."""
    if not lighter.frame_p50_ms or not full.frame_p50_ms:
        return None
    return lighter.frame_p50_ms / full.frame_p50_ms


def smaller_size(runtime: Runtime) -> tuple[int, int] | None:
    """Return height and width of about half the area; None where the model has one size only."""
    size, inputs = runtime.bundle.recipe.input.size, runtime.session.inputs
    if not size or len(inputs) != 1 or sum(not isinstance(one, int) for one in inputs[0].shape[1:]) < 2:
        return None
    height, width = (max(_STEP, round(side * _AREA**0.5 / _STEP) * _STEP) for side in size)
    return (height, width) if height * width < size[0] * size[1] else None


def _with_size(runtime: Runtime, artefact: Artefact, size: tuple[int, int]) -> Runtime:
    """Return a runtime of its own for another input size; the stored answers of the full one do not hold for it."""
    bundle = runtime.bundle
    smaller = replace(bundle, artefacts=(artefact,), recipe=bundle.recipe.with_size(*size), selftest=None, lighter=())
    return Runtime.load(replace(smaller, others=(), standing=None))
