"""A `bench` as another device tells of it: names and facts in place of the session that was open there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from edgeopt.errors import Note, UnavailableError
from edgeopt.executors import Placement, Staged
from edgeopt.graph.tensors import TensorSpec
from edgeopt.measurement.frames.options import BenchOptions
from edgeopt.measurement.frames.planning import plan_load
from edgeopt.measurement.frames.setup import Elsewhere, Setup
from edgeopt.measurement.opening.subject import Subject
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.recipes.recipe import Recipe
from edgeopt.runtime.opening import Opening
from edgeopt.system.declared.target import Target
from edgeopt.tasks import make_task


@dataclass(frozen=True, slots=True)
class ToldSession:
    """A session, as far as figures depend on it."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    placed: tuple[Placement, ...]
    program: str
    opening_ms: Mapping[str, float]
    simulated: bool


@dataclass(frozen=True, slots=True)
class ToldSetup:
    """Everything of a `Setup` that is plain; options and load are known here."""

    asked: str
    asked_target: str
    asked_recipe: str | None
    notes: tuple[Note, ...]
    name: str
    recipe: Recipe
    target: Target
    opening: Opening
    subject_notes: tuple[Note, ...]
    path: Path
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    opset: int | None
    brings_target: bool
    has_weights_beside: bool
    session: ToldSession
    source: Path
    frames: tuple[str, ...]


class SessionElsewhere(Staged):
    """The session of a device that has told its results: it runs nothing here."""

    def __init__(self, address: str, stored: ToldSession) -> None:
        """Take what is known of it."""
        self._address, self._stored = address, stored
        self.inputs, self.outputs, self.simulated = stored.inputs, stored.outputs, stored.simulated

    @property
    def program(self) -> str:
        """The program that computed there."""
        return self._stored.program

    @property
    def opening_ms(self) -> Mapping[str, float]:
        """The parts of opening it."""
        return self._stored.opening_ms

    def execute(self, uploaded: Any) -> NoReturn:
        """Refuse.

        Raises:
            UnavailableError: Always.
        """
        del uploaded
        raise _closed(self._address)

    def placement(self) -> tuple[Placement, ...]:
        """Return where each node ran there."""
        return self._stored.placed

    def close(self) -> None:
        """Nothing is open."""


def tell_setup(setup: Setup) -> ToldSetup:
    """Return what is plain of a setup."""
    subject, session = setup.subject, setup.subject.session
    return ToldSetup(
        asked=setup.asked,
        asked_target=setup.asked_target,
        asked_recipe=setup.asked_recipe,
        notes=setup.notes,
        name=subject.name,
        recipe=subject.recipe,
        target=subject.target,
        opening=subject.opening,
        subject_notes=subject.notes,
        path=subject.path,
        inputs=subject.inputs,
        outputs=subject.outputs,
        opset=subject.opset,
        brings_target=subject.brings_target,
        has_weights_beside=subject.has_weights_beside,
        session=ToldSession(
            inputs=tuple(session.inputs),
            outputs=tuple(session.outputs),
            placed=tuple(session.placement()),
            program=session.program,
            opening_ms=session.opening_ms,
            simulated=session.simulated,
        ),
        source=setup.pictures.source,
        frames=setup.pictures.names,
    )


def setup_of(stored: ToldSetup, options: BenchOptions, address: str) -> Setup:
    """Return the setup of a run that is over, on another device.

    Args:
        stored: What the device tells of it.
        options: Of the run.
        address: Of the device; commands that the result names go there again.
    """

    def read(index: int) -> NoReturn:
        del index
        raise _closed(address)

    subject = Subject(
        name=stored.name,
        recipe=stored.recipe,
        target=stored.target,
        task=make_task(stored.recipe, stored.inputs, stored.outputs, evaluating=False),
        session=SessionElsewhere(address, stored.session),
        opening=stored.opening,
        notes=stored.subject_notes,
        path=stored.path,
        inputs=stored.inputs,
        outputs=stored.outputs,
        opset=stored.opset,
        brings_target=stored.brings_target,
        has_weights_beside=stored.has_weights_beside,
    )
    return Setup(
        asked=stored.asked,
        asked_target=stored.asked_target,
        asked_recipe=stored.asked_recipe,
        options=options,
        plan=plan_load(options),
        subject=subject,
        pictures=Frames(stored.frames, read, stored.source),
        readers=(),
        pipelines=(),
        notes=stored.notes,
        elsewhere=Elsewhere(address, {}),
    )


def _closed(address: str) -> UnavailableError:
    return UnavailableError(f"it ran on {address}, and is not open any more", remedy="open the model here")
