"""A command whose models run on a phone, from its options to its result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic
from typing import Any

from edgeopt.errors import EdgeoptError, UnsupportedError
from edgeopt.measurement.bench.run import write
from edgeopt.measurement.frames.options import BenchOptions
from edgeopt.measurement.frames.planning import plan_load
from edgeopt.system.declared.options import default_of, options_of
from edgeopt.system.disk.files import require_writable
from edgeopt.system.machine.place import computing_on
from edgeopt.verbs._once import checked, compared, shown
from edgeopt.verbs._perform import Performed, is_result, prepare, require_two
from edgeopt.verbs.android import require_verb, serial_in
from edgeopt.verbs.android.bench import SubjectWishes, bench_there
from edgeopt.verbs.android.phone import Phone, Tell
from edgeopt.verbs.android.place import PhonePlace
from edgeopt.workloads import Kind, kind_of

_OPENED = frozenset({"target", "recipe", "threads", "source", "shapes", "seed", "seconds", "out"})
_TAKEN: Mapping[str, frozenset[str]] = {
    "bench": _OPENED | {"min_frames", "minutes", "budget_ms", "max_miss_ratio", "spin"},
}
"""Options that mean the same on a phone, by verb; of other verbs all do but these."""
_LEFT: Mapping[str, frozenset[str]] = {"run": frozenset({"budget_ms", "max_miss_ratio"})}
"""Frames that `run` sends there are late by the cable too."""
_LEAST_LEFT = 0.25
"""Share of a time limit that the phone has at least, however long the search took."""


@contextmanager
def on_phone(verb: str, sources: tuple[str, ...], values: Mapping[str, Any], address: str, tell: Tell) -> Iterator[Any]:
    """Let a phone compute for a command as long as the `with` lasts; the value is a `PhonePlace`.

    Args:
        verb: One of `VERBS`.
        sources: What it is pointed at.
        values: Options that differ from the defaults, by field.
        address: Of the phone.
        tell: Hears what is sent.

    Raises:
        EdgeoptError: If the verb, an option or the kind of workload is not for phones, or it cannot be reached.
    """
    _require_runs(verb, sources, values, address)
    place = PhonePlace(Phone(serial_in(address), tell))
    try:
        with computing_on(place):
            yield place
    finally:
        place.close()


def _require_runs(verb: str, sources: tuple[str, ...], values: Mapping[str, Any], address: str) -> tuple[Kind, Any]:
    """Return the kind and the options of a command that runs on phones.

    Raises:
        EdgeoptError: If it does not.
    """
    require_verb(verb, address)
    if verb == "compare":
        require_two(sources)
    kind, options = prepare(verb, sources, None, values)
    if kind.phone_reason:
        raise UnsupportedError(
            f"{sources[0]} is {kind.noun}, and {kind.phone_reason}",
            remedy="run it here, or on a device behind ssh",
        )
    _require_taken(options, verb)
    if stored := next(filter(is_result, sources), ""):
        raise EdgeoptError(f"{stored} is an earlier result, which runs nowhere", remedy="leave --on out")
    return kind, options


def perform_on_phone(
    verb: str, sources: tuple[str, ...], values: Mapping[str, Any], address: str, tell: Tell, listener: Any = None
) -> Performed[Any]:
    """Do a verb on a phone.

    Args:
        verb: One of `VERBS` that gives a result.
        sources: What it is pointed at.
        values: Options that differ from the defaults, by field.
        address: Of the phone.
        tell: Hears progress.
        listener: Hears progress and lines of `optimize`.

    Raises:
        EdgeoptError: If the verb or an option is not for phones, or it cannot be done there.
    """
    kind, options = _require_runs(verb, sources, values, address)
    if isinstance(options, BenchOptions):
        chosen: Any = options
        plan_load(options)  # says what contradicts itself before a phone is looked for
        if chosen.out is not None:
            require_writable(chosen.out / "bench.json")
    if verb == "optimize":
        return _optimize(sources[0], options, address, tell, listener)
    with on_phone(verb, sources, values, address, tell) as place:
        if verb == "bench":
            wishes = SubjectWishes(chosen.target, chosen.recipe)
            result = bench_there(place, sources[0], wishes, options, tell)
            if chosen.out is not None:
                write(result, kind.module("bench"), chosen.out)
            return shown(result, kind.module("bench"))
        if verb == "compare":
            return compared(sources, None, values, tell)
        if verb == "check":
            return checked(sources[0], None, values, tell)
    raise AssertionError(verb)


def _optimize(source: str, options: Any, address: str, tell: Tell, listener: Any) -> Performed[Any]:
    """Make the candidates here, and have the phone measure them: its milliseconds and its answers choose."""
    began_s, module = monotonic(), kind_of(source, "optimize").module("optimize")
    place = PhonePlace(Phone(serial_in(address), tell))
    if not options.dry_run:
        made = module.make_elsewhere(source, options, place.address, place.processor, listener, has_one_engine=True)
        if isinstance(made, str):
            raise UnsupportedError(
                f"candidates for {place.address} are made on this machine, and here that cannot be: {made}",
                remedy="leave that option out, or name another --target",
            )
        if options.time_limit_s:
            least_s = monotonic() - began_s + _LEAST_LEFT * options.time_limit_s
            options = replace(options, time_limit_s=max(options.time_limit_s, least_s))
        # what was exported first is an ONNX file by now, and has no options of its own any more
        options = replace(options, out=made.folder, resume=True, inputs=(), task="")
        source = made.model
        if listener is not None:
            listener.say("")
            listener.say(f"{place.phone.name} ({place.address}) measures and chooses")
    try:
        with computing_on(place):
            return Performed(module.work(source, options, listener), module.summarize)
    finally:
        place.close()


def _require_taken(options: Any, verb: str) -> None:
    """Raise where an option is for this machine alone.

    Raises:
        UnsupportedError: If so.
    """
    for name, each in options_of(type(options)):
        is_taken = name in _TAKEN.get(verb, (name,)) and name not in _LEFT.get(verb, ())
        if not is_taken and getattr(options, name) != default_of(type(options), name):
            raise UnsupportedError(
                f"{each.flags[0]} has no meaning on a phone, where edgeopt-runner runs one frame after the other",
                remedy="leave it out, or name a device behind ssh",
            )
