"""How a model is opened: one form for a search, a measurement, a bundle and a fresh process."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeopt import executors
from edgeopt.executors import Session, SessionOptions, Source, arithmetic
from edgeopt.runtime.bundles.parts import Artefact
from edgeopt.system.declared import registry
from edgeopt.system.declared.target import Target
from edgeopt.system.machine.affinity import held_processors
from edgeopt.system.machine.place import current_place
from edgeopt.system.machine.threads import engine_threads, usual_threads


@dataclass(frozen=True, slots=True)
class Opening:
    """An engine, and everything on which a model's time and numbers depend there."""

    executor: str
    options: SessionOptions

    def open(self, source: Source) -> Session:
        """Load a model.

        Raises:
            EdgeoptError: If the engine is not here, or refuses the model.
        """
        if (place := current_place()) is not None:
            there: Session = place.open(self, source)
            return there
        session: Session = registry.load(executors, self.executor).EXECUTOR.open(source, self.options)
        return session

    def with_entries(self, entries: Mapping[str, str]) -> Opening:
        """Return the same with further entries of the executor, which come before its own."""
        merged = {**self.options.entries, **entries}
        return dataclasses.replace(self, options=dataclasses.replace(self.options, entries=merged))

    @property
    def sharing(self) -> Mapping[str, str]:
        """Entries with which a session leaves its cores when a run is over, apart from what is set already.

        Sessions of several threads that take turns hold each other up without it: the threads of the last one wait in a
        loop for more work while the next one runs. A model against itself on two cores then differed by 4 %, and the
        machine was called noisy.
        """
        entries = registry.load(executors, self.executor).EXECUTOR.sharing
        return {name: value for name, value in entries.items() if name not in self.options.entries}

    def with_threads(self, threads: int) -> Opening:
        """Return the same with another number of threads."""
        return dataclasses.replace(self, options=dataclasses.replace(self.options, threads=threads))

    def saving_to(self, path: Path) -> Opening:
        """Return the same, with the optimized graph written to a file."""
        return dataclasses.replace(self, options=dataclasses.replace(self.options, save_optimized_to=str(path)))

    def to_json(self) -> dict[str, Any]:
        """Return plain values, for a process of its own."""
        options = {field.name: getattr(self.options, field.name) for field in dataclasses.fields(self.options)}
        options |= {"providers": list(self.options.providers), "entries": dict(self.options.entries)}
        return {"executor": self.executor, "options": options}


def opening_from_json(values: Mapping[str, Any]) -> Opening:
    """Return what `Opening.to_json` wrote."""
    options = values["options"]
    return Opening(values["executor"], SessionOptions(**options | {"providers": tuple(options["providers"])}))


def opening_for(target: Target, precision: str, threads: int, cache_folder: str = "") -> Opening:
    """Return how a profile opens a model.

    Args:
        target: Its executor, providers and options.
        precision: A scheme; what is behind its `+`, or the whole, names the arithmetic of float operators.
        threads: Of the session.
        cache_folder: Where an engine that compiles keeps the result; empty: below the user's caches, for a model that
            is a file.
    """
    options = SessionOptions(
        target.providers,
        threads,
        target.options,
        precision=arithmetic(precision),
        cache_folder=cache_folder,
        cores=target.cores,
    )
    return Opening(target.executor, options)


def opening_of(artefact: Artefact) -> Opening:
    """Return how a file of a bundle is opened: as it was measured, on no more threads than this machine can run.

    One that is held to the fast cores gets no more threads than there are such cores here.
    """
    threads = engine_threads(0, artefact.threads)
    threads = min(threads, usual_threads()) if held_processors(artefact.cores, 1) else threads
    options = SessionOptions(
        artefact.providers,
        threads,
        artefact.options,
        precision=arithmetic(artefact.precision),
        cores=artefact.cores,
    )
    return Opening(artefact.executor, options)
