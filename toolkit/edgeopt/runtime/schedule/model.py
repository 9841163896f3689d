"""A model of a scheduler: what the app says of it, and its state."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from edgeopt import executors
from edgeopt.errors import EdgeoptError
from edgeopt.graph.tensors import Sample
from edgeopt.runtime.bundle import Bundle, read_bundle
from edgeopt.runtime.bundles.parts import Artefact
from edgeopt.runtime.opening import opening_of
from edgeopt.runtime.runtime import Runtime
from edgeopt.runtime.schedule.batch import Batches, why_no_batch
from edgeopt.runtime.schedule.lane import Lane
from edgeopt.runtime.schedule.memory import MIB, resident_bytes
from edgeopt.runtime.schedule.turns import Terms
from edgeopt.runtime.stats.ring import StageRing
from edgeopt.system.declared import registry
from edgeopt.system.machine.affinity import held_to

TURN: Final = "turn"
"""The stage in which a frame waits for its turn."""
_TRIALS: Final = 3
_clock = time.perf_counter_ns


@dataclass(frozen=True, slots=True)
class ScheduledModel:
    """A bundle that takes part in a schedule."""

    path: str | Path
    """Path of the bundle, or of the output folder of `edgeopt optimize`."""
    terms: Terms = field(default_factory=Terms)
    """Priority, budget and rate of the model."""
    threads: int | None = None
    """Threads of the engine; None: as the bundle was measured."""
    is_kept: bool = False
    """Whether it is never unloaded."""
    memory_mib: float | None = None
    """Memory of the model; None: the growth of the process when it is loaded, at least the size of its file."""


@dataclass(slots=True, eq=False)
class Scheduled:
    """A model with its lane and its runtime, if that is loaded."""

    name: str
    model: ScheduledModel
    cores: tuple[int, ...] | None
    """Cores to which its threads are held; None: any."""
    lane: Lane
    leaves_cores: bool
    """Whether its threads stop spinning when a run is over, since others wait for the cores."""
    size_bytes: int
    runtime: Runtime | None = None
    batches: Batches | None = None
    users: int = 0
    """Frames that wait or run."""
    is_leaving: bool = False
    """Whether it is unloaded as soon as these frames are done."""
    used_ns: int = 0
    ring: StageRing = field(default_factory=lambda: StageRing((TURN,)))
    """Ring of the stages of `turn` and the runtime, once it was loaded."""

    def load(self) -> str | None:
        """Load the bundle on its cores and learn how long it runs; return why its frames cannot go together, if asked.

        Raises:
            EdgeoptError: If it does not open.
        """
        before = resident_bytes()
        bundle = read_bundle(Path(self.model.path))
        with held_to(self.cores):
            runtime = Runtime.load(_sharing(bundle) if self.leaves_cores else bundle, threads=self.model.threads)
            try:
                self.runtime = runtime
                reason = self._try_batches(runtime)
            except BaseException:
                self.take_out()
                runtime.close()
                raise
        if self.ring.stages != (stages := (TURN, *self.runtime.stages)):
            self.ring = StageRing(stages)
        if self.model.memory_mib is None:
            self.size_bytes = max(self.size_bytes, resident_bytes() - before)
        return reason

    def take_out(self) -> Runtime | None:
        """Return its runtime, which the caller closes; None if it is not loaded."""
        runtime, self.runtime, self.batches = self.runtime, None, None
        return runtime

    def run(self, frames: Sequence[Sample], stream: int = 0) -> list[tuple[Any, tuple[int, ...]]]:
        """Return the answer of each frame with the times of the runtime's stages; in its turn, on its cores.

        Args:
            frames: One, or several that go together.
            stream: Of a single frame for a recurrent model.

        Raises:
            ValueError: If one is no frame.
            EdgeoptError: If the engine fails.
        """
        with held_to(self.cores):
            if len(frames) > 1:
                assert self.batches is not None
                return self.batches.run(frames)
            assert self.runtime is not None
            return [_run(self.runtime, frames[0], stream)]

    def _try_batches(self, runtime: Runtime) -> str | None:
        """Time a frame, and each size of a batch; return why there is none, where one is asked for."""
        most, size = self.model.terms.max_batch, runtime.bundle.recipe.input.size
        frame = np.full((*size, 3), 128, np.uint8) if size else None
        if frame is not None:
            self._learn(frame, 1)
        if most == 1:
            return None
        recipe = runtime.bundle.recipe
        reason = why_no_batch(runtime.session.inputs, recipe.input.states)
        reason = reason or ("texts differ in length" if recipe.kind == "text" else None)
        if reason:
            return reason
        self.batches = Batches(runtime)
        try:
            for count in range(2, most + 1 if frame is not None else 2):
                self._learn(frame, count)
        except (ValueError, EdgeoptError) as error:  # a Reshape inside may hold the batch of the export
            self.batches = None
            return error.problem if isinstance(error, EdgeoptError) else str(error)
        return None

    def _learn(self, frame: Any, count: int) -> None:
        for _ in range(_TRIALS):
            begun = _clock()
            self.run([frame] * count)
            self.lane.learn(self.name, count, _clock() - begun)


def _run(runtime: Runtime, frame: Sample, stream: int) -> tuple[Any, tuple[int, ...]]:
    with runtime.begin(stream=stream) as work:
        work.preprocess(frame)
        work.execute()
        return work.postprocess(), tuple(work.times_ns)


def _sharing(bundle: Bundle) -> Bundle:
    """Return the bundle, opened so that a model leaves its cores at once when a run is over."""

    def shares(artefact: Artefact) -> Artefact:
        entries = registry.load(executors, artefact.executor).EXECUTOR.sharing
        return replace(artefact, options={**artefact.options, **entries})

    return bundle.mapped(lambda each: replace(each, artefacts=tuple(map(shares, each.artefacts))))


def threads_of(model: ScheduledModel, most: int) -> int:
    """Return how many threads a model is opened with.

    Raises:
        InvalidFileError: If it is no bundle.
    """
    return model.threads or min(opening_of(read_bundle(Path(model.path)).artefacts[0]).options.threads, most)


def least_bytes(model: ScheduledModel) -> int:
    """Return what a model takes at least: as given, or the size of its file."""
    if model.memory_mib is not None:
        return int(model.memory_mib * MIB)
    return read_bundle(Path(model.path)).artefacts[0].size_bytes
