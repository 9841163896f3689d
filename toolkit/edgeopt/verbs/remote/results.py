"""A result as a file: the device that made it writes it, and the program that asked for it reads it."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from edgeopt import tasks
from edgeopt.errors import EdgeoptError, InvalidFileError, UnsupportedError
from edgeopt.measurement.accuracy.bootstrap import Drop
from edgeopt.measurement.check.result import CheckReport
from edgeopt.measurement.compare.result import Comparison
from edgeopt.measurement.frames.options import BenchOptions
from edgeopt.measurement.frames.setup import Setup
from edgeopt.measurement.generation.perplexity import Rise
from edgeopt.measurement.sides import Loss
from edgeopt.running.answers import RunAnswer, TaskAnswer
from edgeopt.system.declared import registry
from edgeopt.system.disk.archives import read_archive
from edgeopt.system.disk.files import write_beside
from edgeopt.system.text import short
from edgeopt.tasks import find_task
from edgeopt.verbs._perform import result_type
from edgeopt.verbs.remote.places import PlacesThere
from edgeopt.verbs.remote.plain import Arrays, Plainly, StandIn
from edgeopt.verbs.remote.told_setup import ToldSetup, setup_of, tell_setup
from edgeopt.workloads import Kind

_ABOUT = "about"
_MOST_ABOUT = 64 << 20
"""Bytes of a result beside its arrays; the objects made of them take twenty times as much."""
_MOST_INTEGER = 2**63
"""A whole number has 64 bits, as one of a file has: a larger one is no count, and ends what adds it up."""
_OF_SIDES = {"compare": Comparison, "check": CheckReport}
_REMEDY = "run it from the command line: edgeopt {verb} ... --on {address}"


@dataclass(frozen=True, slots=True)
class ToldFailure:
    """An error in words."""

    problem: str
    remedy: str


def _plainly(options: Any = None, address: str = "") -> Plainly:
    def restored(stored: ToldSetup) -> Setup:
        assert isinstance(options, BenchOptions)
        return setup_of(stored, options, address)

    def failed(told: ToldFailure) -> EdgeoptError:
        return EdgeoptError(told.problem, remedy=told.remedy)

    stand_ins = {
        Setup: StandIn(ToldSetup, tell_setup, restored),
        EdgeoptError: StandIn(ToldFailure, lambda error: ToldFailure(error.problem, error.remedy), failed),
    }
    return Plainly(stand_ins, {Loss: (Drop, Rise), **_members_of_answers()})


@cache
def _members_of_answers() -> Mapping[type, tuple[type, ...]]:
    """Return the dataclasses that the protocols in a result of `run` stand for."""
    from edgeopt.running.live import AnswerWords, FrameAnswer
    from edgeopt.running.live_subject import Teller
    from edgeopt.runtime.decoding.generation import Piece
    from edgeopt.runtime.decoding.speech.segments import SpeechSegment

    of_tasks = (get_type_hints(find_task(name).postprocess)["return"] for name in registry.names(tasks))
    return {
        RunAnswer: (FrameAnswer, Piece, SpeechSegment),
        Teller: (AnswerWords,),
        TaskAnswer: tuple(each for each in of_tasks if isinstance(each, type) and is_dataclass(each)),
    }


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
    hint = _OF_SIDES.get(verb) or result_type(kind, verb)
    if getattr(options, "dry_run", False) or _plainly().why_not(hint):
        remedy = _REMEDY.format(verb=verb, address=address)
        raise UnsupportedError(f"the result of {verb} for {kind.noun} does not come back to Python", remedy=remedy)
    return hint


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


def read_result(file: Path, hint: Any, options: Any, address: str, places: PlacesThere) -> Any:
    """Return the result that a device wrote.

    Args:
        file: As it came back.
        hint: The type that it has.
        options: Of the run.
        address: Of the device.
        places: How places of this machine are called there: in the result they are called as here.

    Raises:
        InvalidFileError: If it is another one, or damaged.
    """
    remedy = "do not trust this device, or run it from the command line"
    arrays = read_archive(file, remedy=remedy)
    try:
        about = arrays.pop(_ABOUT)
        if about.nbytes > _MOST_ABOUT:
            raise ValueError(f"it has {about.nbytes >> 20} MiB beside its arrays")
        values = json.loads(places.named_here(about.tobytes()), parse_int=_whole)
        return _plainly(options, address).restore(hint, values, arrays)
    except Exception as error:  # its classes check themselves, each in its own way
        problem = f"{address} sends no result: {error.problem if isinstance(error, EdgeoptError) else error!s:.200}"
        raise InvalidFileError(problem, remedy=remedy) from error


def _whole(digits: str) -> int:
    number = int(digits)
    if not -_MOST_INTEGER <= number < _MOST_INTEGER:
        raise ValueError(f"{short(number)} is no number of 64 bits")
    return number
