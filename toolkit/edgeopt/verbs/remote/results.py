"""A result as a file: the device that made it writes it, and the program that asked for it reads it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from edgeopt.errors import EdgeoptError, InvalidFileError, UnsupportedError
from edgeopt.measurement.accuracy.bootstrap import Drop
from edgeopt.measurement.bench.options import BenchOptions
from edgeopt.measurement.bench.setup import Setup
from edgeopt.measurement.check.result import CheckReport
from edgeopt.measurement.compare.result import Comparison
from edgeopt.measurement.generation.perplexity import Rise
from edgeopt.measurement.sides import Loss
from edgeopt.system.disk.archives import read_archive
from edgeopt.system.disk.files import write_beside
from edgeopt.verbs.remote.plain import Arrays, Plainly, StandIn
from edgeopt.verbs.remote.told_setup import ToldSetup, setup_of, tell_setup
from edgeopt.workloads import Kind

_ABOUT = "about"
_OF_SIDES = {"compare": Comparison, "check": CheckReport}
_REMEDY = "run it from the command line: edgeopt {verb} ... --on {address}"


def _plainly(options: Any = None, address: str = "") -> Plainly:
    def restored(stored: ToldSetup) -> Setup:
        assert isinstance(options, BenchOptions)
        return setup_of(stored, options, address)

    return Plainly({Setup: StandIn(ToldSetup, tell_setup, restored)}, {Loss: (Drop, Rise)})


def require_readable(kind: Kind, verb: str, options: Any, address: str) -> Any:
    """Return the type of a verb's result.

    Args:
        kind: Of the workload.
        verb: What is done.
        options: How.
        address: Of the device.

    Raises:
        UnsupportedError: If it holds what cannot come back from a device.
    """
    hint = _OF_SIDES.get(verb) or get_type_hints(kind.module(verb).work)["return"]
    if getattr(options, "dry_run", False) or _plainly().why_not(_restorable(hint)):
        remedy = _REMEDY.format(verb=verb, address=address)
        raise UnsupportedError(f"the result of {verb} for {kind.noun} does not come back to Python", remedy=remedy)
    return _restorable(hint)


def _restorable(hint: Any) -> Any:
    """Return a type, or of a union that member which is no text for a reader."""
    from edgeopt.report.document import Document

    kinds = [each for each in getattr(hint, "__args__", ()) if each is not Document]
    return kinds[0] if len(kinds) == 1 else hint


def store_result(result: Any, file: Path) -> None:
    """Write a result for the program that asked for it.

    Raises:
        EdgeoptError: If it cannot be written.
    """
    arrays: Arrays = {}
    try:
        about = json.dumps(_plainly().flatten(result, arrays), ensure_ascii=False)
    except TypeError as error:
        raise EdgeoptError(f"this result is no file: {error}", remedy="leave --result out") from error
    buffer = io.BytesIO()
    held: dict[str, Any] = {_ABOUT: np.frombuffer(about.encode(), np.uint8), **arrays}
    np.savez_compressed(buffer, **held)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_beside(file, buffer.getvalue())


def read_result(file: Path, hint: Any, options: Any, address: str, mirror: str) -> Any:
    """Return the result that a device wrote.

    Args:
        file: As it came back.
        hint: The type that it has.
        options: Of the run.
        address: Of the device.
        mirror: The folder there that mirrors this machine: places in the result are those of this machine.

    Raises:
        InvalidFileError: If it is another one, or damaged.
    """
    remedy = "do not trust this device, or run it from the command line"
    arrays = read_archive(file, remedy=remedy)
    try:
        about = arrays.pop(_ABOUT).tobytes().decode().replace(f"{mirror}/", "/")
        return _plainly(options, address).restore(hint, json.loads(about), arrays)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        problem = f"{address} sends no result: {error!s:.200}"
        raise InvalidFileError(problem, remedy=remedy) from error
