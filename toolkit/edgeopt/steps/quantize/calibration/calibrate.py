"""Watch the tensors of a model while images stream through it.

One pass; memory grows with the number of tensors, never with the number of images: a histogram, the extremes
of each channel and a fixed number of sampled positions for each tensor. Images are watched in chunks, in this
process and others; as adding chunks is exact, the result is the same however many there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from time import monotonic

from edgeopt.errors import EdgeoptError, Note
from edgeopt.executors._guard import active_guard
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.quantize.calibration.cache import Cache
from edgeopt.steps.quantize.calibration.observation import Observation, Part
from edgeopt.steps.quantize.calibration.processes import Crew
from edgeopt.steps.quantize.calibration.watching import Watcher, groups_of, is_narrow, shapes_of
from edgeopt.system.machine.memory import free_bytes, give_back
from edgeopt.system.machine.threads import physical_cores

__all__ = ["CHUNK_IMAGES", "GROUP_BYTES", "Calibration", "Observation", "calibrate"]

GROUP_BYTES = 256 << 20
"""Activations of one image that are held at once; a larger model runs once for each group of tensors."""
CHUNK_IMAGES = 4
"""Images that go to one process, and into one entry of the cache, together."""
_START_S = 3.0
"""Seconds that starting processes costs: so long one process works alone, as the rest may be small."""
_PROCESS_BYTES = 80 << 20
"""Packages and an engine, without activations."""
_HELD = 1.8
"""Further memory of a process, over the activations that it fetches at once: measured, 1.2 to 1.9."""
_ENGINE_BYTES, _HELD_ELSEWHERE = 64 << 20, 2.0
"""Memory of ONNX Runtime's MinMax calibrator: bytes of packages and an engine, and its factor of one image's
activations (measured: 2.2 to 3.0)."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The observations of one pass over all tensors."""

    observations: Mapping[str, Observation]
    images: int
    spread_ratio: float
    """Spread between images over the spread inside them, both of the first input: near 0 when all are alike."""
    notes: tuple[Note, ...] = ()


def calibrate(
    model: Model,
    frames: Iterable[Tensors],
    axes: Mapping[str, int],
    *,
    group_bytes: int = GROUP_BYTES,
    threads: int = 1,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
    cache: Path | None = None,
    processes: int = 0,
) -> Calibration:
    """Run the float model over `frames` once and watch the tensors named in `axes`.

    Args:
        model: The float model.
        frames: Model inputs, one image each; read once, never kept.
        axes: Tensor name -> its channel axis. Model inputs may be among them.
        group_bytes: Bytes of activations held at once; a single tensor may be larger.
        threads: Of the engine in each process; more than one may round sums otherwise.
        seed: Of the sampled positions.
        progress: Called with the number of images done.
        cache: Folder in which finished chunks are kept and found again, also after an interrupt; None: nowhere.
        processes: How many, this one among them; the result is the same. 0: one for a small job, otherwise see
            `most_processes`.

    Raises:
        EdgeoptError: If there are no images.
        UnsupportedError: If an input is NaN for an image.
        InvalidFileError: If the cache cannot be written.
    """
    stream = iter(frames)
    first = next(stream, None)
    if first is None:
        raise EdgeoptError("there are no calibration images", remedy="give a folder of images with --calib")
    inputs = {spec.name for spec in model.inputs}
    shapes = shapes_of(model, [name for name in axes if name not in inputs], first)
    sizes = {name: 4 * math.prod(shape) for name, shape in shapes.items()}
    groups, plain_layout = groups_of(sizes, group_bytes), is_narrow(shapes.values())
    plan = {"axes": dict(axes), "groups": groups, "threads": threads, "seed": seed, "plain_layout": plain_layout}
    plan["entries"] = entries = dict(guard.entries) if (guard := active_guard()) else {}
    kept = None if cache is None else Cache(cache, {"model": model.fingerprint, **plan})
    watcher = Watcher(model, axes, groups, threads=threads, seed=seed, plain_layout=plain_layout, entries=entries)
    run = _Run(watcher, lambda size: Crew(size, model.data, {**plan, "entries": watcher.entries}), kept, progress)
    held = max((sum(sizes[name] for name in group) for group in groups), default=0)
    run.most = 1 if model.is_outside else processes or most_processes(sum(sizes.values()), held)
    run.starts_at_s = monotonic() + (0.0 if processes > 1 else _START_S)
    try:
        whole = run.through(_chunks(chain([first], stream)))
    finally:
        run.close()
        if model.is_outside:
            give_back()  # forms are made next, and the session that is gone was as large as the weights
    seen = {name: other.observation(axes[name]) for name, other in whole.seen.items()}
    return Calibration(seen, whole.images, whole.spread.ratio(), kept.notes if kept else ())


def _chunks(stream: Iterator[Tensors]) -> Iterator[list[Tensors]]:
    """Yield images in chunks, and hold none while the next is read."""
    while chunk := list(islice(stream, CHUNK_IMAGES)):
        yield chunk
        del chunk


def most_processes(watched_bytes: int, held_bytes: int) -> int:
    """Return how many processes may calibrate at once: as the cores, half of the free memory and a limit allow.

    The limit is what ONNX Runtime's own calibrator holds, so that calibration never needs more memory than that: a
    second process pays only where an image's activations are many and go in groups.

    Args:
        watched_bytes: Activations of one image, all that are watched.
        held_bytes: The most of them that are held at once.
    """
    each = _PROCESS_BYTES + int(_HELD * held_bytes)
    room = min(free_bytes() // 2, _ENGINE_BYTES + int(_HELD_ELSEWHERE * watched_bytes))
    return max(1, min(physical_cores(), room // each))


@dataclass(slots=True)
class _Run:
    """One pass: chunks go to an idle process, to this one where all are busy, and are added up in their order."""

    watcher: Watcher
    start: Callable[[int], Crew]
    cache: Cache | None
    progress: Callable[[int], None] | None
    most: int = 1
    starts_at_s: float = 0.0
    crew: Crew | None = None
    done: int = 0
    whole: Part | None = None
    waiting: list[tuple[list[Tensors], int, str, Future[Part | None]]] = field(default_factory=list)
    ready: dict[int, Part] = field(default_factory=dict)
    """Finished chunks by the number of their first image, until those before them are finished."""

    def through(self, chunks: Iterator[list[Tensors]]) -> Part:
        """Return what all images showed."""
        image = 0
        for chunk in chunks:
            self._take(chunk, image)
            image += len(chunk)
            del chunk
            self._collect(wait=False)
        self._collect(wait=True)
        assert self.whole is not None
        return self.whole

    def _take(self, chunk: list[Tensors], image: int) -> None:
        key = self.cache.key(chunk, image) if self.cache else ""
        known = self.cache.read(key) if self.cache else None
        if known is not None:
            self._finish(known, image, known.images)
            return
        if self.crew is None and self.most > 1 and monotonic() >= self.starts_at_s:
            self.crew = self.start(self.most - 1)
        future = self.crew.submit(chunk, image) if self.crew else None
        if future is not None:
            self.waiting.append((chunk, image, key, future))
        else:
            self._watch_here(chunk, image, key)

    def _watch_here(self, chunk: list[Tensors], image: int, key: str) -> None:
        self._keep(self.watcher.watch(chunk, image, lambda: self._tell(1)), image, key)

    def _keep(self, part: Part, image: int, key: str) -> None:
        if self.cache:
            self.cache.write(key, part)
        self._finish(part, image, 0)

    def _collect(self, *, wait: bool) -> None:
        """Take what other processes have finished; a chunk whose process died is watched here."""
        for entry in list(self.waiting):
            chunk, image, key, future = entry
            if not (wait or future.done()):
                continue
            part = future.result()
            self.waiting.remove(entry)
            if part is None:
                self._watch_here(chunk, image, key)
            else:
                self._tell(part.images)
                self._keep(part, image, key)

    def _finish(self, part: Part, image: int, told: int) -> None:
        self.ready[image] = part
        following = self.whole.images if self.whole else 0
        while (added := self.ready.pop(following, None)) is not None:
            self.whole = added if self.whole is None else self.whole + added
            following = self.whole.images
        if told:
            self._tell(told)

    def _tell(self, images: int) -> None:
        self.done += images
        if self.progress:
            self.progress(self.done)

    def close(self) -> None:
        """Free the sessions and end the other processes."""
        self.watcher.close()
        if self.crew:
            self.crew.close()
