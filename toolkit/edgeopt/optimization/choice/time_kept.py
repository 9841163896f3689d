"""The part of a time limit that a search leaves for the turns, the proof and the judging of what it finds."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.accuracy.judgement import samples_that_agree
from edgeopt.measurement.accuracy.pool import HERE
from edgeopt.measurement.fresh_process.proof_time import SPARE, ProofTime, SeenTimes
from edgeopt.measurement.statistics.ratio import LEAST_RANKED
from edgeopt.optimization.candidate import BASELINE, Candidate
from edgeopt.optimization.options import Prefer
from edgeopt.optimization.run import Run
from edgeopt.steps._context import MOST_MEASURED
from edgeopt.system.toml import read_json

AGREEING = 0.1
"""Share of a time limit that the answers to all samples may take, where agreement judges."""
LABELLED = 0.15
"""The same where labels judge."""
_JUDGED = 3
"""Forms that are judged at most, where it is reckoned how long that takes."""
_SURE = 2
"""Times the samples that should prove an agreement: the few of the search show it roughly."""
_MOST_JUDGED = 1 / 3
"""Share of the time that is left at the end of a search which is kept for judging at most."""
_PROVEN = 0.5
"""Share of it for fresh processes of which it is not known how long they take."""
_LISTED = 3
"""Forms that are proven together where there is time, beside the fastest that computes what the original does."""
_LEAST_MEASURED = 3
"""Forms that are measured in turns however little time there is: what looks fastest in its scoring may not be."""
_SLOWER = "candidates/proof_time.json"
_LEAST_S = 1e-9


def see_model(run: Run, candidate: Candidate, seen: SeenTimes) -> None:
    """Take what was seen of the original, or of a form that keeps its accuracy: a search leaves time to prove it."""
    proof, context = run.context.proof, run.context
    if proof is None or context.pool is not HERE:
        return
    if candidate.name != BASELINE and not candidate.is_resumed:
        _store_seen(run, candidate, seen)
    mine = candidate.sha256, candidate.profile
    alike = [other.name for other in run.candidates if (other.sha256, other.profile) == mine]
    opened_s = [seen.open_s, *(proof.forms[name].open_s for name in alike if name in proof.forms)]
    seen = replace(seen, open_s=max(opened_s))  # the same file opens sooner the second time
    if candidate.name == BASELINE:
        context.proof = replace(proof, original=seen)
    elif run.wish.keeps(candidate):
        context.proof = proof.with_form(candidate.name, seen)
    context.proof = replace(context.proof or proof, judging_s=judging_seconds(run, (*run.candidates, candidate)))


def judged_frame_s(run: Run) -> float:
    """Return the seconds of an answer of the original to a sample that judges; 0: not known."""
    proof = run.context.proof
    return proof.original.frame_s if proof else run.course.frame_s or run.frame_ms / 1000


def judging_seconds(run: Run, candidates: Sequence[Candidate]) -> float:
    """Return what is kept of a time limit for the answers of the original and of the forms that may be judged.

    Args:
        run: With labels, or pictures on which agreement is judged.
        candidates: The original and the forms so far.
    """
    limit_s, context = run.context.time_limit_s, run.context
    if limit_s is None:
        return 0.0
    kept = [candidate for candidate in candidates if candidate.name != BASELINE and run.wish.keeps(candidate)]
    forms, share = min(max(len(kept), 1), _JUDGED), LABELLED if run.labelled else AGREEING
    if run.labelled:
        samples = len(run.labelled.frames)
    elif context.pictures.states:
        samples = len(context.judged_pictures)
    else:
        wanted = [samples_that_agree(candidate.agreement or 0.0, context.least_agreement) for candidate in kept]
        samples = min(max(_SURE * max(wanted, default=0), len(context.judged_pictures)), len(context.pictures))
    return min((1 + forms) * samples * judged_frame_s(run), share * limit_s)


def judging_of(run: Run, left_s: float) -> float:
    """Return the seconds for judging of those that are left when the search is over: none where there is no form."""
    if len(run.candidates) < 2:
        return 0.0
    return min(judging_seconds(run, run.candidates), _MOST_JUDGED * max(left_s, 0.0))


def processes_of(run: Run, measured: Sequence[Candidate], left_s: float) -> float:
    """Return the seconds for fresh processes of those that are left for turns and processes.

    All forms that are worth a proof get six processes where there is time, the one that looks fastest alone as many as
    decide where there is not. Where not even these fit, nothing is kept: the turns show at least what looks faster.

    Args:
        run: With what was seen of its forms.
        measured: The candidates that run in turns, the original first.
        left_s: Until judging begins; infinite without a time limit.
    """
    proof = run.context.proof
    if run.context.time_limit_s is None or len(measured) < 2:
        return 0.0
    if proof is None:
        return _PROVEN * max(left_s, 0.0)
    names = [candidate.name for candidate in measured[1:] if run.wish.keeps(candidate)]
    if not names:
        return 0.0
    best, turns_s = proof.fastest(names), proof.turns_s([candidate.name for candidate in measured[1:]])
    if turns_s + proof.best_s(names) > left_s:
        return 0.0
    rewrites = [candidate.name for candidate in measured[1:] if candidate.is_rewrite]
    listed = dict.fromkeys([*best[:_LISTED], *proof.fastest(rewrites)[:1]])
    return min(SPARE * LEAST_RANKED * proof.each_s([*listed]), left_s - turns_s)


def by_promise(run: Run, others: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates beside the original in the order in which they are measured, where not all fit.

    Those that keep their accuracy come first. Of models that turns open anew the smaller ones come first, as they are
    read sooner, and so of forms whose scoring nobody timed, as where an earlier run had no limit; of others the fastest
    by their scoring, and behind it the fastest that computes what the original does.
    """
    proof = run.context.proof
    is_seen = proof is not None and all(other.name in proof.forms for other in others if run.wish.keeps(other))
    if proof is None or not is_seen or run.context.turn_s or run.wish.prefer is Prefer.SIZE:
        return sorted(others, key=lambda other: (not run.wish.keeps(other), other.size_bytes))
    ordered = sorted(others, key=lambda other: (not run.wish.keeps(other), -proof.gain_of(other.name)))
    rewrite = next((other for other in ordered if other.is_rewrite and run.wish.keeps(other)), None)
    if rewrite is None or rewrite is ordered[0]:
        return ordered
    return [ordered[0], rewrite, *(other for other in ordered[1:] if other is not rewrite)]


def forms_that_fit(run: Run, left_s: float) -> tuple[list[Candidate], float]:
    """Return the candidates whose turns and proof fit into the time, the original first, and what all would take.

    At least one where each turn opens a model, at least three of others.
    """
    baseline, *others = run.candidates
    least, kept = 1 if run.context.turn_s else _LEAST_MEASURED, list[Candidate]()
    for candidate in by_promise(run, others):
        if len(kept) >= least and _needed_s(run, [*kept, candidate]) > left_s:
            break
        kept.append(candidate)
    return [baseline, *(candidate for candidate in others if candidate in kept)], _needed_s(run, others)


def _needed_s(run: Run, forms: Sequence[Candidate]) -> float:
    context, original = run.context, run.candidates[0].size_bytes
    if context.turn_s:
        return context.proof_of([form.size_bytes / original for form in forms])
    return context.proof.needed_s([form.name for form in forms]) if context.proof else 0.0


def limit_with(run: Run, left_s: float, more_s: float) -> float:
    """Return the time limit that would have been enough, in seconds.

    Args:
        run: Under a time limit.
        left_s: Seconds that were left for turns, processes and judging.
        more_s: Seconds that were missing.
    """
    return max((run.context.time_limit_s or 0.0) + SPARE * more_s, (max(left_s, 0.0) + more_s) / MOST_MEASURED)


# A run that is resumed scores no form again, and a process may take longer than a search can know: the next run in the
# folder expects what was seen in this one.


def see_resumed(run: Run, candidate: Candidate) -> None:
    """Take what an earlier run saw of a form that is taken up: this one does not score it again."""
    proof = run.context.proof
    if proof and (seen := _stored_seen(run, candidate, proof.original)):
        see_model(run, candidate, seen)


def _store_seen(run: Run, candidate: Candidate, seen: SeenTimes) -> None:
    """Keep how long a form opened and ran, in times of the original: the machine may be busier or another one later."""
    assert run.context.proof is not None
    original = run.context.proof.original
    values = {
        "open": seen.open_s / max(original.open_s, _LEAST_S),
        "frame": seen.frame_s / max(original.frame_s, _LEAST_S),
    }
    run.workspace.write(_seen_file(candidate), json.dumps({"model": candidate.sha256, **values}))


def _stored_seen(run: Run, candidate: Candidate, original: SeenTimes) -> SeenTimes | None:
    """Return what an earlier run saw of a form; None where it saw nothing, or of another model."""
    try:
        values = read_json(run.workspace.path(_seen_file(candidate)), remedy="")
        open_s, frame_s = float(values["open"]) * original.open_s, float(values["frame"]) * original.frame_s
        is_its = values["model"] == candidate.sha256
    except (EdgeoptError, KeyError, TypeError, ValueError):
        return None
    return SeenTimes(open_s, frame_s, candidate.profile) if is_its else None


def _seen_file(candidate: Candidate) -> str:
    return f"candidates/{candidate.name}/seen.json"


def store_pace(run: Run, ratio: float) -> None:
    """Keep how many times what was expected fresh processes took; 0: none ran, and less of an earlier run is kept."""
    if proof := run.context.proof:
        run.workspace.write(_SLOWER, json.dumps({**_pace_key(run), "slower": proof.slower_by(ratio or 1.0)}))


def stored_pace(run: Run) -> float:
    """Return how much slower than expected fresh processes are to be expected, by an earlier run of the folder.

    It is the root of how much slower they were: that may have been a busy moment, which the process that was just timed
    knows nothing of, and where it lets no process run, none shows that it is over.
    """
    try:
        values = read_json(run.workspace.path(_SLOWER), remedy="")
        is_its = _pace_key(run).items() <= values.items()
        return math.sqrt(ProofTime.bounded(float(values["slower"]))) if is_its else 1.0
    except (EdgeoptError, AttributeError, KeyError, TypeError, ValueError):
        return 1.0


def _pace_key(run: Run) -> dict[str, str | int]:
    """Return what makes fresh processes of another run comparable."""
    context = run.context
    return {"model": context.original.fingerprint, "target": context.target.name, "threads": context.threads}
