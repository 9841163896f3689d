"""A model or a bundle that is measured on a phone: opened here, with the numbers compared, ready to run there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgeopt.errors import Note, NoteKind, UnsupportedError
from edgeopt.executors import Source
from edgeopt.executors.onnxruntime.optimizers import UNOPTIMIZED
from edgeopt.executors.onnxruntime.providers import CPU
from edgeopt.graph.facts.integers import read_integers
from edgeopt.graph.tensors import Tensors, TensorSpec
from edgeopt.measurement.common_options import DEFAULT_TARGET
from edgeopt.measurement.opening.given import open_given
from edgeopt.measurement.opening.subject import Subject, choose_frames, shapes_of, subject_facts
from edgeopt.measurement.turns.interleaved import PICTURES
from edgeopt.recipes.embedded import Embedded
from edgeopt.recipes.inputs.feeding import fed
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.recipes.inputs.input_shapes import Shapes
from edgeopt.recipes.outputs.told_outputs import notes_of_guesses
from edgeopt.recipes.recipe import Recipe
from edgeopt.runtime.bundle import Bundle, is_bundle, parse_bundle, read_bundle, require_whole
from edgeopt.runtime.bundle_targets import measured_on
from edgeopt.runtime.devices.availability import find_device_elsewhere
from edgeopt.runtime.opening import Opening, opening_for, opening_of
from edgeopt.system.declared.target import Target, elsewhere
from edgeopt.system.machine.environment import Environment
from edgeopt.system.machine.processor import Processor
from edgeopt.tasks import make_task
from edgeopt.verbs.android.phone import Phone
from edgeopt.verbs.android.request import WorkThere, left_out
from edgeopt.verbs.android.session import PhoneSession, require_right_numbers


@dataclass(frozen=True, slots=True)
class SubjectWishes:
    """Wishes of a person for models that are measured on a phone."""

    target: str
    recipe: str | None
    threads: int
    source: str | Path | None
    shapes: Shapes
    entries: Mapping[str, str] = field(default_factory=dict)
    """Session entries over the target's own."""


@dataclass(frozen=True, slots=True)
class SubjectThere:
    """A subject whose session is on a phone."""

    phone: Phone
    wishes: SubjectWishes
    subject: Subject
    session: PhoneSession
    frames: Frames
    inputs: tuple[Tensors, ...]
    """Its inputs, made by the recipe here."""
    notes: tuple[Note, ...]
    """On the numbers, the pictures, and what is no part of a frame there."""

    @property
    def target(self) -> str:
        """The target as a command names it that is to mean this phone: `cpu` would mean the machine here."""
        named = self.wishes.target
        return named if named.endswith(".toml") else self.subject.target.name

    def work(self) -> WorkThere:
        """Send the inputs, and return the part of a request that runs the model on them."""
        return self.session.work(self.inputs)

    def environment(self, info: Mapping[str, Any]) -> Environment:
        """Return what its figures on the phone depend on.

        Args:
            info: What refuses no comparison.
        """
        phone, subject, session = self.phone, self.subject, self.session
        own = subject_facts(subject.source, subject.options, session, inputs=self.inputs[0], opset=subject.opset)
        engine = {
            "packages": {"onnxruntime": session.version},
            "engine.abi": phone.abi,
            "engine.runner": phone.runner.rpartition("/")[2],
        }
        return phone.facts.environment(engine, {**own, "recipe": subject.recipe.name}, info)


@dataclass(frozen=True, slots=True)
class _ReadModel:
    """A model as it is read here."""

    name: str
    recipe: Recipe
    target: Target
    opening: Opening
    source: Source
    path: Path
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    precision: str
    notes: tuple[Note, ...]
    opset: int | None = None
    brings_target: bool = False


def open_there(phone: Phone, source: str, wishes: SubjectWishes, frames: Frames | None = None) -> SubjectThere:
    """Open a model or a bundle, send it, and compare what it answers there with what it answers here.

    Args:
        phone: Where it is to run.
        source: As the user named it.
        wishes: How.
        frames: What it is fed; None: as the wishes or its recipe say.

    Raises:
        EdgeoptError: If it cannot be opened, does not run there, or computes something else there.
    """
    model = _read_bundle(phone, source, wishes) if is_bundle(Path(source)) else _read_model(phone, source, wishes)
    if model.recipe.input.states:
        raise UnsupportedError(
            f"{model.name} hands states from frame to frame, which edgeopt-runner does not",
            remedy="measure it here, or on a device behind ssh",
        )
    session = PhoneSession(phone, model.source, model.opening, model.inputs, model.outputs)
    task = make_task(model.recipe, model.inputs, model.outputs, evaluating=False)
    notes: tuple[Note, ...] = ()
    if frames is None:
        frames, notes = choose_frames(model.recipe, wishes.source, model.inputs)
    else:
        frames = fed(frames, model.recipe, model.inputs)
    frames = frames.spread(PICTURES)
    samples = [frames.read(i) for i in range(len(frames))]
    numbers = require_right_numbers(session, model.source, model.opening, task, samples, model.precision)
    subject = Subject(
        name=model.name,
        recipe=model.recipe,
        target=model.target,
        task=task,
        session=session,
        opening=model.opening,
        notes=(*model.notes, *numbers, *_outside(model)),
        source=model.source,
        path=model.path,
        inputs=model.inputs,
        outputs=model.outputs,
        opset=model.opset,
        brings_target=model.brings_target,
    )
    inputs = tuple(_copied(task.preprocess(sample)[0]) for sample in samples)
    return SubjectThere(phone, wishes, subject, session, frames, inputs, (*notes, *_of_one_size(inputs)))


def _copied(inputs: Tensors) -> Tensors:
    """Return inputs in memory of their own: a recipe may write the next ones over them."""
    return {name: array.copy() for name, array in inputs.items()}


def _of_one_size(inputs: Sequence[Tensors]) -> tuple[Note, ...]:
    """Return a warning of inputs that are left out, as the runner has room for those of one size."""
    shapes = [{name: array.shape for name, array in each.items()} for each in inputs]
    others = sum(each != shapes[0] for each in shapes)
    if not others:
        return ()
    text = f"{others} of {len(inputs)} frames have another size than the first, and do not run on the phone"
    return (Note(NoteKind.WARNING, text, "name a --source with frames of one size"),)


def _read_model(phone: Phone, source: str, wishes: SubjectWishes) -> _ReadModel:
    target = find_device_elsewhere(wishes.target, phone.address, phone.facts.processor)
    _require_runner_runs(target.executor, target.providers, f"the target {target.name}", phone)
    if reason := target.why_unfit():
        raise UnsupportedError(f"target {target.name}: {reason}", remedy="name --target cpu, which fits any phone")
    opened = open_given(source, target, wishes.recipe, sizes=wishes.shapes, fed=shapes_of(wishes.source))
    model, threads = opened.model, phone.facts.threads(wishes.threads, target.threads)
    opening = opening_for(opened.target, opened.target.float_precision, threads).with_entries(wishes.entries)
    return _ReadModel(
        name=model.name,
        recipe=opened.recipe,
        target=opened.target,
        opening=opening,
        source=model.source,
        path=opened.path,
        inputs=model.inputs,
        outputs=model.outputs,
        precision="w8a8" if read_integers(model).count else target.float_precision,
        notes=opened.choice.notes,
        opset=model.opset,
    )


def _read_bundle(phone: Phone, source: str, wishes: SubjectWishes) -> _ReadModel:
    bundle = _for_phone(read_bundle(Path(source)), phone, wishes.target)
    artefact = bundle.artefacts[0]
    _require_runner_runs(artefact.executor, artefact.providers, artefact.file, phone)
    require_whole(bundle, artefact)
    if artefact.weights is not None:
        require_whole(bundle, artefact.weights)
    opening = opening_of(artefact).with_entries(wishes.entries)
    opening = opening.with_threads(phone.facts.threads(wishes.threads, artefact.threads))
    path = bundle.path_of(artefact)
    unoptimized = opening.with_entries(UNOPTIMIZED)
    with closing(unoptimized.open(path)) as session:
        inputs, outputs = session.inputs, session.outputs
    target, notes = elsewhere(bundle.target, phone.address, phone.facts.processor), notes_of_guesses(bundle.recipe)
    if bundle.others:
        why = "asked for" if bundle.is_asked else "the nearest to the phone that its runner runs"
        text = f"target {bundle.label} of {len(bundle.others) + 1} in the bundle: {why}"
        notes = (*notes, Note(NoteKind.CHOICE, text))
    if reason := target.why_unfit():
        notes = (*notes, Note(NoteKind.WARNING, f"the bundle is for another device: {reason}", "optimize for this one"))
    return _ReadModel(
        name=source,
        recipe=bundle.recipe,
        target=target,
        opening=opening,
        source=path,
        path=path,
        inputs=inputs,
        outputs=outputs,
        precision=artefact.precision,
        notes=notes,
        brings_target=True,
    )


def _for_phone(bundle: Bundle, phone: Phone, target: str) -> Bundle:
    """Return of a bundle for several targets the one that is asked for, else the first that fits the phone.

    Raises:
        NotFoundError: If it is not for that target.
    """
    if not bundle.others or target != DEFAULT_TARGET:
        return parse_bundle(bundle.folder, target) if bundle.others else bundle
    there = phone.facts.processor
    fitting = [
        each
        for each in (bundle, *bundle.others)
        if _runs_in_runner(each.artefacts[0].executor, each.artefacts[0].providers)
        and elsewhere(each.target, phone.address, there).why_unfit() is None
    ]
    # The order is this machine's: on the phone what was measured on most of its instructions is nearest.
    return bundle.led_by(max(fitting, key=lambda each: _shared(each, there), default=bundle))


def _shared(bundle: Bundle, processor: Processor) -> int:
    known = measured_on(bundle.expected)
    return len({*known.instructions} & processor.flags) if known else 0


def _runs_in_runner(executor: str, providers: Sequence[str]) -> bool:
    return executor == "onnxruntime" and providers[0] == CPU


def _require_runner_runs(executor: str, providers: Sequence[str], whose: str, phone: Phone) -> None:
    if not _runs_in_runner(executor, providers):
        engine = f"{providers[0]} of ONNX Runtime" if executor == "onnxruntime" else executor
        raise UnsupportedError(
            f"{whose} is for {engine}, and edgeopt-runner on {phone.address} has ONNX Runtime on the processor alone",
            remedy="name --target cpu, or a bundle that was made for it",
        )


def _outside(model: _ReadModel) -> tuple[Note, ...]:
    """Return what an app does besides, which no time of the phone holds."""
    notes = []
    parts = [part for part in (Embedded.PREPROCESS, Embedded.POSTPROCESS) if part not in model.recipe.embedded]
    if parts and not model.recipe.takes_arrays:
        named = f"{' and '.join(parts)} {'does' if len(parts) == 1 else 'do'}"
        text = f"a frame on the phone is the model alone: the recipe's {named} not run there"
        hint = "edgeopt optimize --steps default,embed-preprocess,embed-postprocess puts them into the model"
        notes.append(Note(NoteKind.WARNING, text, hint))
    if setting := left_out(model.opening.options.entries):
        text = f"the setting {setting} has no word in ONNX Runtime's interface for C, and is left out on the phone"
        notes.append(Note(NoteKind.WARNING, text, "frames may take some per cent longer than in Python"))
    if model.opening.options.cores:
        text = "edgeopt-runner holds no threads to the fast cores of the phone, as the model asks for"
        notes.append(Note(NoteKind.WARNING, text, "frames may take longer than held to them"))
    return tuple(notes)
