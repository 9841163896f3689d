"""The guard over a command that makes forms of a model: each is tried in a child first, with the right optimizations.

A command enters `guarded()`; executors ask `active_guard()`. An app that runs a bundle enters none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from edgeopt.executors import SessionOptions, Source
from edgeopt.graph.files.outside import Outside
from edgeopt.graph.tensors import Tensors
from edgeopt.system.machine.memory import free_bytes

if TYPE_CHECKING:  # whoever runs a bundle enters no guard, and needs nothing of children
    from edgeopt.executors._child import EngineAbortError

FirstRun: TypeAlias = Callable[[Tensors | None], None]
"""Runs a model in the child on the inputs of its first run here; None: on some that the child makes up."""
LARGE_BYTES = 64 << 20
"""A model of this size is the only one open in the child, and memory is looked at before it is opened there."""
_COPIES = 3
"""Times a model's size: the file, the weights of the child's session and those of the one here."""

_passed: set[tuple[str, str]] = set()
"""Models that a child opened or ran without an abort: their key, and which of both."""
_aborted: dict[str, EngineAbortError] = {}
"""Models on which an engine aborted, by their key."""


class Guard:
    """The settings that executors heed while forms are made."""

    def __init__(self) -> None:
        self.entries: Mapping[str, str] = {}
        """Session entries of ONNX Runtime with which the given model is right; a session's own come before them."""

    def try_open(self, executor: str, source: Source, options: SessionOptions, *, pages: str = "") -> FirstRun | None:
        """Open a model in the child, unless it was opened there before.

        Args:
            executor: The engine's name.
            source: The model.
            options: How it is opened.
            pages: As `EngineChild.open` has it.

        Returns:
            What is to be called before the model runs here for the first time; None: it ran in the child before, or
            memory does not hold it twice.

        Raises:
            EngineAbortError: If the engine aborted.
        """
        from edgeopt.executors._child import CHILD

        size_bytes = _size_bytes(source)
        if not fits_twice(size_bytes):
            return None
        options = replace(options, profile_to="", save_optimized_to="")
        key = _key(executor, source, options, pages)
        if key in _aborted:
            raise _aborted[key]
        keeps, is_large = (key, "run") not in _passed, size_bytes > LARGE_BYTES

        def opened() -> bool:
            with _noting(key):
                ran = CHILD.open(key, executor, source, options, keeps=keeps, is_alone=is_large, pages=pages)
                is_refused = bool(ran.refusal)
                _passed.add((key, "open"))
                return not is_refused
            return False

        def first_run(inputs: Tensors | None) -> None:
            if (key, "run") in _passed:
                return
            with _noting(key):
                ran = CHILD.run(key, executor, inputs)
                if not ran.is_open and not CHILD.open(key, executor, source, options, is_alone=is_large).refusal:
                    CHILD.run(key, executor, inputs)
                _passed.add((key, "run"))

        if (key, "open") not in _passed and not opened():
            return None
        return None if (key, "run") in _passed else first_run


def fits_twice(size_bytes: int) -> bool:
    """Whether memory holds a model of this size in the child and here."""
    return size_bytes <= LARGE_BYTES or free_bytes() >= _COPIES * size_bytes


@contextmanager
def _noting(key: str) -> Iterator[None]:
    """Remember an abort; go on where the child was lost, since that tells nothing of the model."""
    from edgeopt.executors._child import ChildLostError, EngineAbortError

    try:
        yield
    except EngineAbortError as abort:
        _aborted[key] = abort
        raise
    except ChildLostError:
        pass


def _size_bytes(source: Source) -> int:
    if isinstance(source, Path):
        return source.stat().st_size
    if isinstance(source, Outside):
        return len(source.graph) + sum(file.stat().st_size for file in source.files)
    return len(source)


def _key(executor: str, source: Source, options: SessionOptions, pages: str = "") -> str:
    """Return what the fate of a session depends on: the model, the engine and how it is opened."""
    digest = hashlib.sha256()
    if isinstance(source, bytes):
        digest.update(source)
    else:
        digest.update(source.graph if isinstance(source, Outside) else b"")
        for file in source.files if isinstance(source, Outside) else (source,):
            status = file.stat()
            digest.update(f"{file.resolve()} {status.st_size} {status.st_mtime_ns}".encode())
    how = (executor, pages, options.providers, options.threads, sorted(options.entries.items()), options.precision)
    digest.update(repr(how).encode())
    return digest.hexdigest()


_active: ContextVar[Guard | None] = ContextVar("edgeopt.guard", default=None)


def active_guard() -> Guard | None:
    """Return the guard of the command that runs; None outside one."""
    return _active.get()


@contextmanager
def guarded() -> Iterator[Guard]:
    """Try forms in a child while this lasts; a guard inside another has entries of its own."""
    guard = Guard()
    token = _active.set(guard)
    try:
        yield guard
    finally:
        _active.reset(token)
