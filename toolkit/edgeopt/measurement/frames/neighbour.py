"""The model of `--beside`: opened before minutes are spent, then run beside the one that is measured."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from edgeopt import executors
from edgeopt.errors import EdgeoptError, Note
from edgeopt.graph.tensors import Sample
from edgeopt.measurement.frames.options import BenchOptions
from edgeopt.measurement.load.beside import Beside, BesideWish, Member, parse_beside, run_beside
from edgeopt.measurement.load.run import LoadPlan, Tell
from edgeopt.measurement.load.workers import Pipeline
from edgeopt.measurement.opening.subject import Subject, choose_frames, open_subject
from edgeopt.recipes.inputs.timed import readers_of
from edgeopt.runtime.schedule.cores import assign_cores
from edgeopt.system.declared import registry
from edgeopt.system.machine.affinity import held_to
from edgeopt.system.machine.threads import usable_cores

Readers = tuple[Callable[[], Sample], ...]


@dataclass(frozen=True)
class Neighbour:
    """A model and its pictures; its session is closed until it runs."""

    wish: BesideWish
    subject: Subject
    readers: Readers
    notes: tuple[Note, ...]


def open_neighbour(options: BenchOptions, target: str) -> Neighbour | None:
    """Open the model that is asked for; None where none is.

    Args:
        options: With the wish; the number of threads is for both models.
        target: For a model; a bundle brings its own.

    Raises:
        EdgeoptError: If it cannot be opened.
    """
    if options.beside is None:
        return None
    wish = parse_beside(options.beside)
    try:
        subject = open_subject(wish.model, target=target, recipe=None, threads=options.threads)
        subject.session.close()
        pictures, notes = choose_frames(subject.recipe, None, subject.inputs)
    except EdgeoptError as error:
        remedy = f"{error.remedy}; for --beside: give its bundle, which holds its recipe"
        raise EdgeoptError(f"--beside {options.beside}: {error.problem}", remedy=remedy) from error
    return Neighbour(wish, subject, readers_of(pictures), notes)


def measure_beside(
    subject: Subject, readers: Readers, plan: LoadPlan, other: Neighbour, options: BenchOptions, tell: Tell | None
) -> Beside:
    """Run both models alone, beside each other, and by the scheduler.

    Args:
        subject: Has the priority.
        readers: Its pictures.
        plan: Its load.
        other: The model beside it.
        options: How long.
        tell: Hears progress.
    """
    name = other.subject.name if other.subject.name != subject.name else f"{other.subject.name} (2)"
    threads = {subject.name: subject.threads, name: other.subject.threads}
    usable = usable_cores()
    cores = assign_cores(threads, usable)
    shares = cores[subject.name] == cores[name]
    entries = registry.load(executors, other.subject.executor).EXECUTOR.sharing if shares else {}
    with ExitStack() as opened:

        def open_on(one: Subject, held: tuple[int, ...] | None, entries: dict[str, str]) -> Pipeline:
            with held_to(held):
                task, session = one.open_again(entries)
            opened.callback(session.close)
            return task, session

        def held(who: str) -> tuple[int, ...] | None:
            return None if set(cores[who]) == set(usable) else cores[who]

        first_plain = subject.pipeline
        first_cores, other_cores = held(subject.name), held(name)
        first = first_plain if first_cores is None else open_on(subject, first_cores, {})
        members = (
            Member(subject.name, readers, first_plain, first, first_cores),
            Member(
                name,
                other.readers,
                open_on(other.subject, None, {}),
                open_on(other.subject, other_cores, dict(entries)),
                other_cores,
            ),
        )
        return run_beside(
            *members,
            plan,
            other.wish.rate_per_s,
            seconds=options.measure_s,
            min_frames=options.min_frames,
            tell=tell,
        )
