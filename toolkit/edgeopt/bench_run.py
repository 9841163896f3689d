"""One model or bundle on this machine, frame by frame, stage by stage: the closed loop. It changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from edgeopt import executors, plugins, tasks
from edgeopt.benchmarking.attribution import Attribution, StageShare, check_attribution, share_stages
from edgeopt.benchmarking.budget import BudgetResult, judge_budget
from edgeopt.benchmarking.frame_loop import run_frames
from edgeopt.benchmarking.quantile import Summary
from edgeopt.benchmarking.samples import Samples
from edgeopt.bundle import is_bundle
from edgeopt.environment import Environment, physical_cores, read_environment
from edgeopt.errors import EXIT_PASS, EdgeoptError, Note, NoteKind
from edgeopt.executors import Session, SessionOptions
from edgeopt.files import write_beside
from edgeopt.frames import Frames, open_frames, synthetic_frames
from edgeopt.model import find_model, load_model
from edgeopt.recipe import Recipe
from edgeopt.recognise import choose_recipe
from edgeopt.runtime import Runtime
from edgeopt.target import Target, find_target
from edgeopt.tasks import Task
from edgeopt.tensors import Frame

SCHEMA = 1


@dataclass(frozen=True)
class Subject:
    """What is measured: a task and a loaded session."""

    name: str
    recipe: Recipe
    target: Target
    task: Task
    session: Session
    threads: int
    notes: tuple[Note, ...]


@dataclass(frozen=True)
class BenchResult:
    """Raw samples and what they say."""

    name: str
    recipe: str
    target: str
    threads: int
    source: str
    samples: Samples
    attribution: Attribution
    budget: BudgetResult
    budget_asked: bool
    environment: Environment
    notes: tuple[Note, ...]

    @property
    def summary(self) -> dict[str, Summary]:
        """Head, centre and tail of the frame, each stage and the overhead."""
        return self.samples.summary()

    @property
    def shares(self) -> Mapping[str, StageShare]:
        """What each stage takes of all frames and of the slow ones."""
        return share_stages(self.samples)

    @property
    def exit_code(self) -> int:
        """0, 2 or 3; a budget that nobody asked for fails nothing."""
        return self.budget.verdict.exit_code if self.budget_asked else EXIT_PASS

    def as_json(self) -> dict[str, Any]:
        """Return plain values; the raw samples are in the .npz beside them."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "recipe": self.recipe,
            "target": self.target,
            "threads": self.threads,
            "source": self.source,
            "samples": self.samples.to_json(),
            "attribution": asdict(self.attribution),
            "budget": asdict(self.budget),
            "environment": asdict(self.environment),
            "notes": [asdict(note) for note in self.notes],
        }


def bench(
    model: str | Path,
    *,
    target: str = "cpu",
    recipe: str | None = None,
    source: str | Path | None = None,
    seconds: float = 5.0,
    min_frames: int = 400,
    budget_ms: float | None = None,
    max_miss_ratio: float = 0.01,
    threads: int = 0,
    out: Path | None = None,
    tell: Callable[[int, float], None] | None = None,
) -> BenchResult:
    """Measure a model or a bundle in a closed loop on this machine.

    Args:
        model: Path of an ONNX file or a bundle, or a shipped model's name.
        target: For a model; a bundle brings its own.
        recipe: For a model; a bundle brings its own.
        source: Pictures; None: the recipe's own, or synthetic ones.
        seconds: Least time to measure, after warm-up.
        min_frames: Least frames to measure, after warm-up.
        budget_ms: What a frame may take; None: the target's.
        max_miss_ratio: Share of frames that may take longer.
        threads: 0: the target's, or one per physical core.
        out: Where `bench.json` and `samples.npz` go; None: nowhere.
        tell: Called with frames and seconds so far.

    Raises:
        EdgeoptError: If the model, recipe, target or pictures cannot be used.
    """
    subject = open_subject(str(model), target=target, recipe=recipe, threads=threads)
    frames, notes = choose_frames(subject.recipe, source)
    readers: list[Callable[[], Frame]] = [partial(frames.read, i) for i in range(len(frames))]
    samples = run_frames(
        readers,
        subject.task,
        subject.session,
        seconds=seconds,
        min_frames=min_frames,
        on_progress=tell,
        variant=subject.name,
    )
    result = BenchResult(
        name=subject.name,
        recipe=subject.recipe.name,
        target=subject.target.name,
        threads=subject.threads,
        source=str(frames.source),
        samples=samples,
        attribution=check_attribution(samples),
        budget=judge_budget(samples.steady().frame_ns, budget_ms or subject.target.budget_ms, max_miss_ratio),
        budget_asked=budget_ms is not None,
        environment=read_environment(),
        notes=(*subject.notes, *notes),
    )
    if out:
        samples.save(out / "samples.npz")
        write_beside(out / "bench.json", json.dumps(result.as_json(), indent=2, allow_nan=False) + "\n")
    return result


def open_subject(model: str, *, target: str, recipe: str | None, threads: int) -> Subject:
    """Open a bundle, a model file or a shipped model for measuring.

    Raises:
        EdgeoptError: If it cannot be opened.
    """
    if is_bundle(Path(model)):
        runtime = Runtime.load(model, threads=threads)
        bundle = runtime.bundle
        used = threads or bundle.target.threads or physical_cores()
        return Subject(model, bundle.recipe, bundle.target, runtime.task, runtime.session, used, runtime.notes)
    device, path = find_target(target), find_model(model)
    loaded = load_model(path)
    choice = choose_recipe(recipe, path, loaded.inputs, loaded.outputs, loaded.metadata)
    used = threads or device.threads or physical_cores()
    executor = plugins.load(executors, device.executor).EXECUTOR
    session = executor.open(loaded.data, SessionOptions(device.providers, used, device.options))
    task = plugins.load(tasks, choice.recipe.task).TASK(choice.recipe, loaded.inputs, loaded.outputs, False)
    notes = choice.notes
    if reason := device.why_not_here():
        notes += (Note(NoteKind.WARNING, f"this is not the target: {reason}", "these times are this machine's"),)
    return Subject(loaded.name, choice.recipe, device, task, session, used, notes)


def choose_frames(recipe: Recipe, source: str | Path | None) -> tuple[Frames, tuple[Note, ...]]:
    """Return the pictures asked for, else the recipe's own, else synthetic ones with a note.

    Raises:
        EdgeoptError: If the source holds no pictures.
    """
    shipped = recipe.path_of(recipe.evaluation.calib)
    if source is None and (shipped is None or not recipe.folder.name):
        note = Note(
            NoteKind.WARNING, "synthetic pictures: postprocess sees other boxes", "pass --source with real ones"
        )
        return synthetic_frames(recipe.input.size), (note,)
    frames = open_frames(Path(source) if source is not None else shipped or Path())
    if frames.tensors is not None:
        raise EdgeoptError(f"{frames.source} holds tensors, no pictures", remedy="pass pictures or a video")
    return frames, frames.notes
