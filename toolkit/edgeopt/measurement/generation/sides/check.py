"""The gate for a language model: answers, perplexity, size and cache against a baseline in a file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from edgeopt.errors import InvalidFileError, Note, NoteKind, NotFoundError
from edgeopt.graph.files.outside import sha256_of
from edgeopt.measurement.bench.stored import show_difference
from edgeopt.measurement.check.baseline import path_from
from edgeopt.measurement.check.options import Gate
from edgeopt.measurement.check.result import (
    CheckReport,
    CheckResult,
    CheckVerdict,
    judge_size,
    judge_time,
    skipped,
)
from edgeopt.measurement.check.run import thresholds_of
from edgeopt.measurement.generation.answer_budget import AnswerBudget
from edgeopt.measurement.generation.budget import prove_budget
from edgeopt.measurement.generation.doubts import doubts_of_machine
from edgeopt.measurement.generation.held_out import require_alike
from edgeopt.measurement.generation.options import OUTPUT_TOKENS, PROMPT_TOKENS, SideOptions
from edgeopt.measurement.generation.perplexity import Rise, TextScore, rise_between
from edgeopt.measurement.generation.sides.side_by_side import (
    TWIN,
    Tell,
    WriterSide,
    open_again,
    open_sides,
    prompts_of,
    read_judging_text,
    require_room,
    score_sides,
    time_sides,
)
from edgeopt.measurement.generation.sides.turns import PARTS, FormTurns, Prompt, ratio_between
from edgeopt.measurement.resources.readings import take_reading
from edgeopt.measurement.resources.trust import TrustLevel
from edgeopt.measurement.statistics.budget import Verdict
from edgeopt.measurement.statistics.ratio import Ratio, ratio_of_series
from edgeopt.recipes.allowed import MAX_RISE, Check
from edgeopt.recipes.texts.encoder_decoder import graphs_in
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.system.amounts import Tenths
from edgeopt.system.disk import assets
from edgeopt.system.disk.files import require_writable, write_beside
from edgeopt.system.machine.environment import Environment, read_environment
from edgeopt.system.toml import read_object

SCHEMA = 1
CHECKS = ("latency", "accuracy", "size", "memory")
"""That `--skip` knows of a language model; `accuracy` is its perplexity, `memory` its cache."""
_LONGER = 3
"""Times the seconds of the turns that proving a budget may take."""
_KIND = "edgeopt baseline of a language model"


@dataclass(frozen=True)
class WriterBaseline:
    """A language model as it was when it was good."""

    name: str
    model: str
    """Path from the file's own folder, or a shipped name."""
    sha256: str
    threads: int
    prompt_tokens: int
    output_tokens: int
    size_bytes: int
    token_bytes: int
    text_sha256: str
    """Text SHA-256 of the windows that judged it; empty: none did."""
    losses: tuple[float, ...]
    times_ns: tuple[tuple[float, ...], ...]
    """One row an answer, by `PARTS`."""
    environment: Environment

    def locate(self, file: Path) -> str | None:
        """Return what to open it by, or None if nothing is there any more."""
        if self.model in assets.model_folders():
            return self.model
        path = file.parent / self.model
        return os.path.normpath(path) if path.exists() else None


def read_writer_baseline(file: Path) -> WriterBaseline:
    """Read what a check with `update` wrote.

    Raises:
        InvalidFileError: If it is absent, damaged, or another kind of file.
    """
    remedy = f"write it once from a good model: edgeopt check MODEL --baseline {file} --update"
    values = dict(read_object(file, schema=SCHEMA, remedy=remedy))
    if values.pop("kind", "") != _KIND:
        raise InvalidFileError(f"{file} is no baseline of a language model", remedy=remedy)
    values.pop("schema")
    try:
        return WriterBaseline(
            **values
            | {
                "losses": tuple(float(value) for value in values["losses"]),
                "times_ns": tuple(tuple(float(entry) for entry in row) for row in values["times_ns"]),
                "environment": Environment.from_json(values["environment"]),
            }
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidFileError(f"{file} is damaged: {error!r}", remedy=remedy) from error


def _write(baseline: WriterBaseline, file: Path) -> None:
    values: dict[str, Any] = {name: getattr(baseline, name) for name in baseline.__dataclass_fields__}
    values |= {"schema": SCHEMA, "kind": _KIND, "environment": baseline.environment.to_json()}
    write_beside(file, json.dumps(values, indent=1, allow_nan=False) + "\n")


def check_language_model(
    given: str,
    model: Path,
    *,
    gate: Gate,
    options: SideOptions,
    find: Callable[[str], Path] = Path,
    budget: AnswerBudget | None = None,
    judge_noisy: bool = False,
    tell: Tell = lambda *_: None,
) -> CheckReport:
    """Check a language model against a baseline, or write the baseline from it.

    Args:
        given: As the user named it.
        model: The bundle or file.
        gate: The baseline's file, what is allowed beyond the recipe's `[check]`, and what is left out;
            `accuracy_drop` is the share by which the perplexity may rise.
        options: Lengths, text and time; the lengths and threads of a baseline hold where they are not asked for.
        find: Finds a model by its name or path.
        budget: Limits that answers must keep beside.
        judge_noisy: Judge times on a noisy machine too.
        tell: Hears how far it is.

    Raises:
        EdgeoptError: If the baseline is missing or damaged, or the model cannot be used.
    """
    began_s, baseline, skip, update = monotonic(), Path(gate.baseline), gate.skip, gate.update
    for name in skip:
        if name not in CHECKS:
            raise NotFoundError("check of a language model", name, CHECKS)
    if update:
        require_writable(baseline)
    stored = None if update else read_writer_baseline(baseline)
    standard = (stored.prompt_tokens, stored.output_tokens) if stored else (PROMPT_TOKENS, OUTPUT_TOKENS)
    options = replace(
        options,
        prompt_tokens=options.prompt_tokens or standard[0],
        output_tokens=options.output_tokens or standard[1],
    )
    with ExitStack() as stack:
        (now,) = open_sides({"now": model}, options.threads or (stored.threads if stored else 0), stack)
        then, why_gone = _open_then(stored, baseline, find, now, stack) if stored else (None, "")
        sides = [then, now] if then else [now]
        require_alike({side.label: side.model for side in sides})
        require_room(sides, options)
        text = read_judging_text(sides, options)
        scores = {} if "accuracy" in skip else score_sides(sides, text, tell)
        twin = open_again(then) if then else None
        readings = [take_reading()]
        turns = {} if "latency" in skip else time_sides(sides, twin, text, options, tell)
        readings.append(take_reading())
        doubts = doubts_of_machine(readings) if turns else ()
        noise = "" if judge_noisy else "; ".join(doubts)
        limits = thresholds_of(now.recipe.check, gate.allowed, MAX_RISE)
        windows_hash = text.sha256
        results = list[CheckResult]()
        if stored is None:
            made = WriterBaseline(
                name=now.recipe.name,
                model=path_from(baseline, given),
                sha256=_hash_of(now.model.origin.file),
                threads=now.model.origin.threads,
                prompt_tokens=options.prompt_tokens,
                output_tokens=options.output_tokens,
                size_bytes=now.model.origin.size_bytes,
                token_bytes=now.model.token_bytes,
                text_sha256=windows_hash,
                losses=scores["now"].losses if scores else (),
                times_ns=tuple(map(tuple, turns["now"].times_ns.tolist())) if turns else (),
                environment=read_environment(),
            )
            _write(made, baseline)
        else:
            why_not = (
                ""
                if then
                else _why_not_stored(
                    stored, read_environment(), why_gone, (options.prompt_tokens, options.output_tokens)
                )
            )
            before = _score_then(stored, scores, windows_hash)
            judged: dict[str, Callable[[], list[CheckResult]]] = {
                "latency": lambda: _check_latency(stored, turns, limits, noise, why_not),
                "accuracy": lambda: [_check_perplexity(scores.get("now"), before, limits, text.why_not_judged)],
                "size": lambda: [judge_size(now.model.origin.size_bytes, stored.size_bytes, limits.size_ratio)],
                "memory": lambda: [_check_cache(now.model.token_bytes, stored.token_bytes, limits.memory_ratio)],
            }
            for name, judge in judged.items():
                results += [skipped(name)] if name in skip else judge()
        if budget:
            results += _check_budget(budget, now, prompts_of(now.model, text, options), options, tell)
        notes = list(now.model.origin.notes)
    if update and not scores:
        detail = "the baseline holds no perplexity: check guards speed, size and cache, not accuracy"
        notes.append(Note(NoteKind.WARNING, detail, "pass --eval TEXT to guard it"))
    if stored and why_gone:
        notes.append(Note(NoteKind.WARNING, why_gone, "keep it to measure both in turns"))
    return CheckReport(
        name=now.recipe.name,
        baseline=f"{stored.name} of {baseline}" if stored else str(baseline),
        results=tuple(results),
        thresholds=limits,
        trust=_told_trust(doubts, is_in_turns=then is not None),
        notes=tuple(notes),
        seconds=monotonic() - began_s,
        updated=update,
    )


def _open_then(
    stored: WriterBaseline, file: Path, find: Callable[[str], Path], now: WriterSide, stack: ExitStack
) -> tuple[WriterSide | None, str]:
    """Return the baseline's model where it is still there as it was, and else why not."""
    place = stored.locate(file)
    if place is None:
        return None, f"the baseline's model, {stored.model}, is not there any more"
    (then,) = open_sides({"baseline": find(place)}, now.model.origin.threads, stack)
    if _hash_of(then.model.origin.file) != stored.sha256:
        return None, f"the baseline's model, {stored.model}, is another one now"
    return then, ""


def _hash_of(model: Path) -> str:
    """Return the hash of a model's file, or of the graphs of an encoder and its decoder."""
    graphs = {*(graphs_in(model) or ())} if model.is_dir() else {model}
    return " ".join(sha256_of(graph) for graph in sorted(graphs))


def _why_not_stored(stored: WriterBaseline, now: Environment, why_gone: str, lengths: tuple[int, int]) -> str:
    """Return why this run cannot be compared with the times in the file; empty: it can."""
    if lengths != (stored.prompt_tokens, stored.output_tokens):
        return f"{why_gone}, and its answers had other lengths"
    keys = stored.environment.why_not_comparable(now)
    shown = "; ".join(show_difference(stored.environment, now, key) for key in keys[:3])
    return f"{why_gone}, and its figures are of another machine or software: {shown}" if keys else ""


def _score_then(stored: WriterBaseline, scores: Mapping[str, TextScore], windows_hash: str) -> TextScore | None:
    if "baseline" in scores:
        return scores["baseline"]
    return TextScore(stored.losses, ()) if stored.losses and stored.text_sha256 == windows_hash else None


def _check_latency(
    stored: WriterBaseline, turns: Mapping[str, FormTurns], limits: Check, noise: str, why_not: str
) -> list[CheckResult]:
    check_results = list[CheckResult]()
    for part in PARTS:
        ratio: Ratio | None = None
        if TWIN in turns:
            null = ratio_between(turns["baseline"], turns[TWIN], part)
            ratio = ratio_between(turns["baseline"], turns["now"], part, null)
        elif not why_not and stored.times_ns:
            place = PARTS.index(part)
            ratio = ratio_of_series(turns["now"].times_ns[:, place], np.array(stored.times_ns)[:, place], margin=0.0)
        why_none = why_not or "the baseline holds no times"
        check_results.append(judge_time(f"latency {part}", ratio, limits.latency_ratio, noise, why_none))
    return check_results


def _told_trust(doubts: Sequence[str], *, is_in_turns: bool) -> str:
    """Return how far the times are believed."""
    way = "answers ran in turns with a second copy of the baseline" if is_in_turns else "answers ran alone"
    return f"{TrustLevel.NOISY}: {'; '.join(doubts)}; {way}" if doubts else way


def _check_perplexity(now: TextScore | None, then: TextScore | None, limits: Check, why_none: str) -> CheckResult:
    allowed = MAX_RISE if limits.accuracy_drop is None else limits.accuracy_drop
    if now is None or then is None:
        why = why_none or "the baseline was judged by another text"
        return CheckResult("perplexity", CheckVerdict.INCONCLUSIVE, None, allowed, why, "rise")
    rise: Rise = rise_between(then, now)
    shown = f"{now.perplexity:.3f} on {len(now.losses)} windows; rise {rise}, {allowed:.1%} allowed"
    if rise.high <= allowed:
        verdict = CheckVerdict.PASS
    elif rise.low > allowed:
        verdict = CheckVerdict.FAIL
    else:
        verdict, shown = CheckVerdict.INCONCLUSIVE, f"{shown}; a longer --eval TEXT would decide"
    value = rise.value if np.isfinite(rise.value) else None
    return CheckResult("perplexity", verdict, value, allowed, shown, "rise")


def _check_cache(now_bytes: int, then_bytes: int, allowed: float) -> CheckResult:
    ratio = now_bytes / then_bytes
    verdict = CheckVerdict.PASS if ratio <= allowed else CheckVerdict.FAIL
    detail = f"cache of {now_bytes} bytes a token, the baseline's {then_bytes}: {ratio:.3f}, {allowed:.3f} allowed"
    return CheckResult("memory", verdict, ratio, allowed, detail)


def _check_budget(
    budget: AnswerBudget, now: WriterSide, prompts: Sequence[Prompt], options: SideOptions, tell: Tell
) -> list[CheckResult]:
    words = {Verdict.PASS: CheckVerdict.PASS, Verdict.FAIL: CheckVerdict.FAIL}
    proven = prove_budget(
        now.model,
        prompts,
        AnswerOptions(most_tokens=options.output_tokens, ends=False),
        budget,
        _LONGER * options.seconds,
        lambda done, of: tell("prove the budget", done, Tenths(of)),
    )
    return [
        CheckResult(
            f"budget {limit.part}",
            words.get(limit.counted.verdict, CheckVerdict.INCONCLUSIVE),
            limit.median.value_ms,
            limit.limit_ms,
            str(limit),
            "ms",
        )
        for limit in proven.limits
    ]
