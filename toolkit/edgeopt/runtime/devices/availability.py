"""The device profile a command works for, and what is missing to use it here."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from edgeopt import executors
from edgeopt.errors import EdgeoptError, NotFoundError, UnavailableError, UnsupportedError
from edgeopt.executors import Executor, SessionOptions
from edgeopt.system.declared import registry
from edgeopt.system.declared.target import Target, TargetElsewhere, elsewhere, find_target
from edgeopt.system.machine.place import current_place
from edgeopt.system.machine.processor import Processor

_NO_TOOLCHAIN = frozenset({"onnxruntime", "openvino"})
"""Executors that reach an NPU only on a machine that has it; what can be installed anywhere is asked for instead."""


def find_device(name: str) -> Target:
    """Return a profile; one that chooses takes a device that is present before one that is only simulated here.

    Args:
        name: Shipped name, or path of a TOML file.

    Raises:
        NotFoundError: If it is neither, or names a rewrite or an option of its engine that does not exist.
        InvalidFileError: If the file is wrong.
        UnavailableError: If a profile that chooses finds none for which the packages are here; it names them all.
    """
    try:
        target = find_target(name, lambda other: why_unavailable(other) or why_absent(other))
    except UnavailableError:
        target = find_target(name, why_unavailable)
    require_known(target)
    # another machine that computes for this process has one engine: none stands beside it
    return target if current_place() is None else replace(target, alternatives=())


def find_device_elsewhere(name: str, address: str, processor: Processor) -> TargetElsewhere:
    """Return a profile as one on another machine, whose engine is here too; of one that chooses what fits there.

    Args:
        name: Shipped name, or path of a TOML file.
        address: Of the machine, as `--on` takes it.
        processor: Of the machine.

    Raises:
        NotFoundError: As `find_device`.
        InvalidFileError: If the file is wrong.
        UnavailableError: If none fits there, or its engine is not here.
    """
    target = find_target(name, why_unavailable, partial(elsewhere, address=address, processor=processor))
    require_known(target)
    assert isinstance(target, TargetElsewhere)
    return target


def require_known(target: Target) -> None:
    """Raise where a profile names a rewrite or an option of its engine that does not exist, or asks what it lacks.

    Raises:
        NotFoundError: If it does.
        UnsupportedError: If its engine cannot be held to cores, or has no products on grids that are found.
    """
    known = registry.names_in("passes")
    for rewrite in target.rewrites:
        if rewrite not in known:
            raise NotFoundError("pass", rewrite, known)
    if target.executor in registry.names(executors):
        executor = load_executor(target.executor)
        executor.check(SessionOptions(target.providers, 1, target.options))
        if target.cores and not executor.holds_cores:
            raise UnsupportedError(
                f"the executor {target.executor} is held to no cores", remedy=f"leave cores out of {target.name!r}"
            )
        if "dynamic" in target.int8.forms and target.providers[0] not in executor.finds_grids_on:
            engine = f"the executor {target.executor} on {target.providers[0]}"
            raise UnsupportedError(
                f"{engine} has no products on grids that are found as the model runs",
                remedy=f"leave dynamic out of the forms of {target.name!r}",
            )


def load_executor(name: str) -> Executor:
    """Return an executor by its file name.

    Raises:
        NotFoundError: If there is none.
    """
    executor: Executor = registry.load(executors, name).EXECUTOR
    return executor


def why_unavailable(target: Target) -> str | None:
    """Return None if the target's engine runs here, on the device or on its simulator; otherwise what is missing."""
    if target.executor not in registry.names(executors):
        return f"no executor {target.executor!r} is installed"
    executor = load_executor(target.executor)
    return executor.why_unavailable() or executor.why_no_provider(target.providers)


def is_compiled(target: Target) -> bool:
    """Whether models are compiled for the target ahead of time, and judged by its device or its simulator."""
    return load_executor(target.executor).compiled


def is_by_rule(target: Target) -> bool:
    """Whether nothing here can compile for the target, or time it, so that its profile's own rules must judge."""
    if target.device == "npu" and target.executor in _NO_TOOLCHAIN:
        return why_unavailable(target) is not None
    return not is_compiled(target) and why_unavailable(target) is None and why_absent(target) is not None


def require_providers(target: Target) -> None:
    """Find out before any work whether the target's provider could run a model: ONNX Runtime falls back in silence.

    Raises:
        UnavailableError: If it is not in this build, or lacks its driver or a library.
    """
    load_executor(target.executor).require_providers(target.providers)


def require_engine(target: Target, threads: int) -> Executor:
    """Return the executor of a target whose engine is here and takes its options.

    Raises:
        UnavailableError: If it is not here.
    """
    executor = load_executor(target.executor)
    require_providers(target)
    if reason := why_unavailable(target):
        raise UnavailableError(f"target {target.name} cannot run here: {reason}", remedy=how_to_get(target))
    executor.check(SessionOptions(target.providers, threads, target.options))
    return executor


def how_to_get(target: Target) -> str:
    """Return what to do where a target's engine is not here."""
    return f"install {target.package}, or run edgeopt doctor" if target.package else "run edgeopt doctor"


def why_absent(target: Target) -> str | None:
    """Return None if the target's device itself is here, not only what computes its numbers."""
    try:
        has_device = load_executor(target.executor).has_device(target.providers)
        return None if has_device else "only its simulator is here"
    except EdgeoptError as error:
        return error.problem
