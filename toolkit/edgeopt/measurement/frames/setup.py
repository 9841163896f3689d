"""A model, its pictures and a load, opened and ready to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from edgeopt.errors import EdgeoptError, Note, UnsupportedError
from edgeopt.graph.tensors import Sample
from edgeopt.measurement.frames.neighbour import Neighbour, open_neighbour
from edgeopt.measurement.frames.options import BenchOptions
from edgeopt.measurement.frames.planning import plan_load
from edgeopt.measurement.load.run import LoadPlan
from edgeopt.measurement.load.workers import Pipeline
from edgeopt.measurement.opening.subject import Subject, choose_frames, open_subject, shapes_of
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.recipes.inputs.timed import readers_of
from edgeopt.runtime.schedule.batch import why_no_batch
from edgeopt.system.machine.environment import Environment


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A device that is measured from here."""

    address: str
    """As `--on` takes it."""
    facts: Mapping[str, str]
    """Lines about the device, by label."""


@dataclass(frozen=True)
class Setup:
    """The subject, session and frames that every part of a `bench` works on."""

    asked: str
    """The model, as the user wrote it."""
    asked_target: str
    """As the user wrote it; empty for a bundle, which brings its own."""
    asked_recipe: str | None
    options: BenchOptions
    plan: LoadPlan
    subject: Subject
    pictures: Frames
    readers: tuple[Callable[[], Sample], ...]
    pipelines: tuple[Pipeline, ...]
    """One a worker."""
    notes: tuple[Note, ...]
    neighbour: Neighbour | None = None
    elsewhere: Elsewhere | None = None
    """The device that is measured from here; None: it runs here."""

    @property
    def budget_ms(self) -> float:
        """The budget of a frame: the user's, else the target's."""
        return self.options.budget_ms or self.subject.target.budget_ms

    @property
    def runs_onnxruntime(self) -> bool:
        """Whether the engine has spinning threads, a profiler and session entries."""
        return self.subject.executor == "onnxruntime"

    def environment(self) -> Environment:
        """Return machine, software and subject, in full."""
        inputs, _ = self.subject.task.preprocess(self.readers[0]())
        values = {"load": str(self.plan), "pictures": len(self.pictures)}
        info = {"seed": self.options.seed, "source": str(self.pictures.source)}
        return self.subject.environment(values, info, inputs)


def open_setup(model: str, *, target: str, recipe: str | None, options: BenchOptions) -> Setup:
    """Open everything that the wishes need.

    Raises:
        EdgeoptError: If something cannot be opened, or a wish cannot be met: before minutes are spent.
    """
    plan = plan_load(options)
    subject = open_subject(
        model,
        target=target,
        recipe=recipe,
        threads=options.threads,
        workers=plan.workers,
        entries=options.entries,
        shapes=shapes_of(options.source),
        sizes=options.shapes,
    )
    pictures, notes = choose_frames(subject.recipe, options.source, subject.inputs)
    neighbour = open_neighbour(options, target)
    setup = Setup(
        asked=model,
        asked_target=subject.picked_target if subject.brings_target else target,
        asked_recipe=recipe,
        options=options,
        plan=plan,
        subject=subject,
        pictures=pictures,
        readers=readers_of(pictures.decoded_by(subject.task.decoding)),
        pipelines=(subject.pipeline, *(subject.open_again() for _ in range(plan.workers - 1))),
        notes=(*subject.notes, *notes),
        neighbour=neighbour,
    )
    _require_possible(setup)
    return setup


def _require_possible(setup: Setup) -> None:
    options, states = setup.options, setup.subject.recipe.input.states
    if options.batches and (reason := why_no_batch(setup.subject.session.inputs, states)):
        raise UnsupportedError(
            f"--batch {','.join(map(str, options.batches))}: {reason}",
            remedy=f"{'' if states else 'export the model with a free first dimension, or '}leave --batch out",
        )
    if options.cold and setup.subject.session.opening_ms:
        raise UnsupportedError(
            "--cold starts processes of Python, and this model is opened by another program",
            remedy="leave it out: the line `opening` tells what opening takes there",
        )
    if options.profile and not setup.runs_onnxruntime:
        name, executor = setup.subject.name, setup.subject.executor
        raise EdgeoptError(
            f"--profile needs the executor onnxruntime, and {name} runs on {executor}",
            remedy="leave it out, or choose another --target",
        )
