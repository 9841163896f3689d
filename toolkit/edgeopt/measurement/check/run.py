"""The regression gate: a workload against a baseline in a file, judged by intervals.

Where the baseline's workload is still there, both are measured in turns; else this run is compared with the samples in
the file, if machine and software are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from edgeopt.errors import InvalidFileError, Note, NoteKind, NotFoundError
from edgeopt.measurement.bench.stored import show_difference
from edgeopt.measurement.check.baseline import Baseline, damaged, path_from, read_baseline, remedy_of, write_baseline
from edgeopt.measurement.check.guards import guards_of
from edgeopt.measurement.check.options import CHECKS_OF_ALL, Gate
from edgeopt.measurement.check.result import (
    CheckReport,
    CheckResult,
    CheckVerdict,
    judge_time,
    skipped,
)
from edgeopt.measurement.resources.trust import Trust, TrustLevel
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.sides import Baselined, CheckedSides, SidesOfKind, Tell
from edgeopt.measurement.statistics.ratio import Ratio, block_medians, ratio_of_series
from edgeopt.recipes.default_limits import MAX_DROP, Check
from edgeopt.system.disk.files import require_writable
from edgeopt.system.toml import Within, parse_table, require_measurable

LATENCY, *_ = CHECKS_OF_ALL
"""The check of times; the other checks are guards."""
_NOT_MEASURED = "not judged: latency was skipped"


def check(
    opener: SidesOfKind,
    source: str,
    options: Gate,
    tell: Tell | None = None,
    *,
    kind: str,
    noun: str,
    own_checks: tuple[str, ...],
) -> CheckReport:
    """Check a workload against a baseline, or write the baseline from it.

    Args:
        opener: Opens it.
        source: As the user named it.
        options: What is checked, against which baseline, and what is allowed, the kind's own dataclass; what it does
            not name is as the recipe's `[check]` says.
        tell: Hears progress.
        kind: Name of its kind of workload.
        noun: As messages call a workload of its kind: `a language model`.
        own_checks: Names of the guards that its kind alone has, which may be left out as those of all kinds may.

    Raises:
        EdgeoptError: If the baseline is missing, damaged or of another kind, or the workload cannot be used.
    """
    began_s, file = perf_counter(), Path(options.baseline)
    require_measurable(options.seconds, options.seed, options.threads)
    names = (*CHECKS_OF_ALL, *own_checks)
    for name in options.skip:
        if name not in names:
            raise NotFoundError(f"check of {noun}", name, names)
    if options.update:
        require_writable(file)
        with closing(opener.open_checked([source], options, {})) as sides:
            report = _update(sides, kind, noun, options, file, tell)
            notes, environment = sides.notes, sides.facts[-1].environment
    else:
        stored = read_baseline(file)
        if stored.kind != kind:
            problem = f"{file} is the baseline of {stored.workload}, and {source} is {noun}"
            raise InvalidFileError(problem, remedy=remedy_of(file))
        sides, why_gone = _open(opener, stored, source, options, file)
        with closing(sides):
            report = _check(sides, stored, why_gone, options, file, tell)
            notes, environment = sides.notes, sides.facts[-1].environment
    all_notes = tuple(dict.fromkeys((*notes, *report.notes)))
    seconds = perf_counter() - began_s
    return replace(report, notes=all_notes, seconds=seconds, kind=kind, environment=environment)


def thresholds_of(recipe: Check, wishes: Mapping[str, float], may_lose: float = MAX_DROP) -> Check:
    """Return what is allowed: the wishes over the recipe's own.

    Args:
        recipe: What the recipe's `[check]` allows.
        wishes: What the user allows, by the names of `Check`.
        may_lose: What `optimize` may lose: that much accuracy is allowed where neither says.

    Raises:
        EdgeoptError: If a wish is unknown or refused.
    """
    known = [field.name for field in fields(Check)]
    for name in wishes:
        if name not in known:
            raise NotFoundError("threshold", name, known)
        Within(0, 1e6).require(name, wishes[name])
    values = {name: value for name, value in asdict(recipe).items() if value is not None}
    return parse_table(Check, {"accuracy_drop": may_lose} | values | dict(wishes), "thresholds")


def _open(opener: SidesOfKind, stored: Baseline, source: str, options: Gate, file: Path) -> tuple[CheckedSides, str]:
    """Open what is checked, and before it the baseline's workload if it is still there as it was; else say why not."""
    options = replace(options, threads=options.threads or stored.threads)
    place = stored.locate(file)
    if place is None:
        sides = opener.open_checked([source], options, stored.settings)
        return sides, f"the baseline's model, {stored.model}, is not there any more"
    sides = opener.open_checked([place, source], options, stored.settings)
    if sides.facts[0].sha256 != stored.sha256:
        return sides.without_first(), f"the baseline's model, {stored.model}, is another one now"
    return sides, ""


@dataclass(frozen=True, slots=True)
class _Latency:
    """The judged times."""

    results: tuple[CheckResult, ...]
    blocked: str = ""
    """Why the machine is too noisy to judge times; empty: it is not."""
    trust: str = _NOT_MEASURED


def _check(
    sides: CheckedSides, stored: Baseline, why_gone: str, options: Gate, file: Path, tell: Tell | None
) -> CheckReport:
    now, limits = sides.facts[-1], sides.limits(options.allowed)
    why_not = _why_not_stored(stored, sides, why_gone) if why_gone else ""
    held = _read_held(sides, stored, file)
    latency = _Latency((skipped(LATENCY),))
    if LATENCY not in options.skip:
        latency = _check_latency(sides, stored, limits.latency_ratio, why_not, options, tell)
    results = list(latency.results)
    for name, guard in guards_of(sides).items():
        if name in options.skip:
            results.append(skipped(name.replace("_", " ")))
            continue
        then = Baselined(held.get(name), not why_gone, why_gone, why_not, latency.blocked)
        results += guard.judge(then, limits, tell)
    notes = [Note(NoteKind.WARNING, why_gone, "keep it to measure both in turns")] if why_gone else []
    if all(result.verdict is CheckVerdict.SKIPPED for result in results):
        notes.append(Note(NoteKind.WARNING, "nothing was checked", "leave --skip out, or skip less"))
    name = f"{stored.name} of {file}"
    return CheckReport(now.label, name, tuple(results), limits, latency.trust, tuple(notes), 0.0)


def _read_held(sides: CheckedSides, stored: Baseline, file: Path) -> dict[str, Any]:
    """Return what the file holds of each guard.

    Raises:
        InvalidFileError: If it is damaged.
    """
    guards = guards_of(sides)
    try:
        return {name: guards[name].read(value) for name, value in stored.held.items() if name in guards}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise damaged(file, error) from error


def _why_not_stored(stored: Baseline, sides: CheckedSides, why_gone: str) -> str:
    """Return why this run cannot be compared with the figures in the file; empty: it can."""
    now, settings = sides.facts[-1].environment, sides.settings
    for name, before in stored.settings.items():
        if None not in (before, settings.get(name)) and settings[name] != before:
            wanted = name.replace("_", " ")
            return f"{why_gone}, and it was measured with {wanted} {before}, not {settings[name]}"
    keys = stored.environment.why_not_comparable(now)
    if not keys:
        return ""
    shown = "; ".join(show_difference(stored.environment, now, key) for key in keys[:3])
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return f"{why_gone}, and its figures are of another machine or software: {shown}{more}"


def _check_latency(
    sides: CheckedSides, stored: Baseline, allowed: float, why_not: str, options: Gate, tell: Tell | None
) -> _Latency:
    """Judge the times, in turns with the baseline's workload where that is open."""
    label, ratios = sides.facts[-1].label, dict[str, Ratio | None]()
    if len(sides.facts) > 1:
        timed = sides.run_in_turns(options.seconds, tell)
        trust = timed.trust
        ratios = {part: timed.ratio(label, part) for part in sides.judged_parts if part in timed.parts}
        is_usable = options.judge_noisy and trust is not None and trust.level is not TrustLevel.INVALID
        blocked = "" if is_usable else _noise(trust)
    else:
        samples, trust = sides.run_alone(options.seconds, tell)
        then = stored.samples
        for part in sides.judged_parts:
            if then is None or part in (*then.stages, then.whole):
                ratios[part] = None if why_not or then is None else _against_stored(samples, then, part)
        blocked = _noise(trust)
        if not blocked and stored.trust not in ("", TrustLevel.TRUSTED):
            blocked = f"so was the baseline's: {'; '.join(stored.trust_reasons)}"
    why_none = why_not or "the baseline holds no times" if stored.samples is None else why_not or _TOO_FEW
    results = [judge_time(f"latency {part}", ratio, allowed, blocked, why_none) for part, ratio in ratios.items()]
    return _Latency(tuple(results), blocked, str(trust))


_TOO_FEW = "too few samples for an interval; measure longer with --seconds"


def _noise(trust: Trust | None) -> str:
    if trust is None or trust.level is TrustLevel.TRUSTED:
        return ""
    return ", ".join(reason.name for reason in trust.reasons) or f"the machine is {trust.level}"


def _against_stored(samples: Samples, then: Samples, part: str) -> Ratio | None:
    return ratio_of_series(block_medians(samples, part), block_medians(then, part), margin=0.0)


def _update(sides: CheckedSides, kind: str, noun: str, options: Gate, file: Path, tell: Tell | None) -> CheckReport:
    """Measure alone and write the baseline."""
    (now,) = sides.facts
    guards = guards_of(sides)
    held = {name: guard.hold(tell) for name, guard in guards.items() if name not in options.skip}
    held = {name: value for name, value in held.items() if value is not None}
    samples, trust = (None, None) if LATENCY in options.skip else sides.run_alone(options.seconds, tell)
    baseline = Baseline(
        name=now.label,
        kind=kind,
        workload=noun,
        model=path_from(file, now.given),
        settings=sides.settings,
        sha256=now.sha256,
        threads=now.threads,
        held=held,
        trust=str(trust.level) if trust else "",
        trust_reasons=tuple(str(reason) for reason in trust.reasons) if trust else (),
        environment=now.environment,
        samples=samples,
    )
    write_baseline(baseline, file)
    notes = [note for name, guard in guards.items() if name not in held for note in guard.note_unheld()]
    if trust and trust.level is not TrustLevel.TRUSTED:
        hint = "keep the model, or write it again on a quiet machine"
        more = "only a check in turns with the model itself can judge its latency"
        notes.append(Note(NoteKind.WARNING, trust.warning, hint, more=more))
    limits, told = sides.limits(options.allowed), str(trust) if trust else _NOT_MEASURED
    return CheckReport(now.label, str(file), (), limits, told, tuple(notes), 0.0, updated=True)
