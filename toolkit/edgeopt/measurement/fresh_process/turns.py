"""The same models in turns in several fresh processes, since a session's place in memory moves it by 10 to 20 %.

A session keeps its place as long as its process lives, so frames of one process agree about a ratio that
the next process does not confirm. Each process here gives one ratio, and the interval is over processes.

Run by itself as a module with a folder; request and answer are files of that folder.
"""

from __future__ import annotations

import pickle
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from edgeopt.executors import Source
from edgeopt.graph.tensors import Sample, TensorSpec
from edgeopt.measurement.fresh_process.process import run_child
from edgeopt.measurement.load.workers import Pipeline
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.ratio import Ratio, ratio_of_rounds
from edgeopt.measurement.turns.fed_back import feed_back
from edgeopt.measurement.turns.interleaved import Opened, Pace, Turns, join_legs, take_turns
from edgeopt.recipes.inputs.frames import Frames, open_frames
from edgeopt.recipes.inputs.pictures import VIDEOS
from edgeopt.recipes.inputs.timed import is_read
from edgeopt.recipes.recipe import Recipe
from edgeopt.runtime.opening import Opening
from edgeopt.system.machine.place import current_place
from edgeopt.system.processes.programs import add_ended_s, started_s
from edgeopt.tasks import make_task

_PICTURES = 8
_LONGEST_S = 1800.0
_REQUEST, _ANSWER = "request.pickle", "answer.pickle"
"""Both are written and read by this very program, in a folder that only this user opens."""


@dataclass(frozen=True, slots=True)
class Runnable:
    """A model with its task, and how both are opened in this process or in another."""

    opening: Opening
    source: Source
    recipe: Recipe
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def open(self) -> Pipeline:
        """Return a task and a session of its own, which leaves its cores to the others when a run is over.

        Raises:
            EdgeoptError: If the session does not open.
        """
        session = self.opening.with_entries(self.opening.sharing).open(self.source)
        task = make_task(self.recipe, self.inputs, self.outputs, evaluating=False)
        return task, feed_back(session, self.recipe.input.states)


class Openable(Protocol):
    """A subject that can be opened in another process: plain values that say how."""

    def open(self) -> Opened:
        """Return it open, ready to run."""
        ...


@dataclass(frozen=True, slots=True)
class Feed:
    """A few frames for another process: files by name where reading is timed, else the samples themselves."""

    source: Path
    names: tuple[str, ...]
    samples: tuple[Sample, ...] = ()
    kind: str = "picture"

    def frames(self) -> Frames:
        """Return them as frames."""
        if self.samples:
            return Frames(self.names, lambda i: self.samples[i], self.source, kind=self.kind)
        if self.source.is_dir():
            return open_frames(self.source, self.names)
        whole = open_frames(self.source)  # a video, or one sound
        return whole.select([whole.names.index(name) for name in self.names])


@dataclass(frozen=True)
class FreshTurns:
    """Runs of the same models in turns, each in a process of its own."""

    processes: tuple[Turns, ...]

    def ratio(self, label: str, part: str, *, against: str = "", margin: float = 0.02) -> Ratio:
        """Return the ratio of one to another (the first) over processes; what a process gives is one value."""
        result = [process.centre(label, part, against=against) for process in self.processes]
        ratio = ratio_of_rounds(np.array(result), pairs=len(result), margin=margin)
        return replace(ratio, processes=len(result))

    def samples(self, label: str) -> Samples:
        """Return the raw samples of one model, rounds numbered through."""
        return join_legs([process.samples[label] for process in self.processes])


def feed_of(frames: Frames) -> Feed:
    """Return a few of the frames for another process."""
    chosen = frames.spread(_PICTURES)
    is_folder = chosen.source.is_dir() and all((chosen.source / name).is_file() for name in chosen.names)
    if is_read(chosen) and (is_folder or chosen.source.suffix.lower() in VIDEOS or chosen.kind == "sound"):
        return Feed(chosen.source, chosen.names)
    return Feed(chosen.source, chosen.names, tuple(chosen), chosen.kind)


def run_fresh(runnables: Mapping[str, Openable], feed: Feed, pace: Pace, *, workers: int, seed: int) -> Turns:
    """Run models in turns in one fresh process.

    Args:
        runnables: One or more by label; the first is what the others are compared with.
        feed: What they are fed.
        pace: How long.
        workers: Threads of a session.
        seed: Of the order.

    Raises:
        EdgeoptError: If the process fails.
    """
    if current_place() is not None:  # each leg is a process of its own there
        openers = {label: runnable.open for label, runnable in runnables.items()}
        return take_turns(openers, feed.frames(), pace, workers=workers, seed=seed)
    with tempfile.TemporaryDirectory(prefix="edgeopt-fresh-") as folder:
        (Path(folder) / _REQUEST).write_bytes(pickle.dumps((dict(runnables), feed, pace, workers, seed)))
        run_child("fresh_process.turns", folder, longest_s=_LONGEST_S, remedy="run edgeopt doctor")
        turns: Turns = pickle.loads((Path(folder) / _ANSWER).read_bytes())
    add_ended_s(turns.programs_s)
    return turns


def main() -> int:
    """Do what the request in the folder says; return the exit code."""
    folder = Path(sys.argv[1])
    runnables, feed, pace, workers, seed = pickle.loads((folder / _REQUEST).read_bytes())
    openers = {label: runnable.open for label, runnable in runnables.items()}
    turns = take_turns(openers, feed.frames(), pace, workers=workers, seed=seed)
    (folder / _ANSWER).write_bytes(pickle.dumps(replace(turns, programs_s=started_s())))
    sys.stdout.write("{}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
