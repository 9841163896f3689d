"""The candidates of a run measured together, as an app would open them, and the choice by what was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from time import monotonic

from edgeopt.errors import Note, NoteKind
from edgeopt.graph.model import load_model
from edgeopt.measurement.fresh_process.turns import Runnable, feed_of, run_fresh
from edgeopt.measurement.load.workers import Pipeline
from edgeopt.measurement.turns.fed_back import feed_back
from edgeopt.measurement.turns.interleaved import Pace, Turns
from edgeopt.optimization.candidate import BASELINE, Candidate
from edgeopt.optimization.candidates.measure import (
    CONFIRM_SECONDS,
    MOST_SECONDS,
    Bench,
    Decision,
    Fresh,
    late_s,
    measure_and_choose,
)
from edgeopt.optimization.candidates.same_graphs import same_as_original
from edgeopt.optimization.choice.accuracy_proof import prove_accuracy
from edgeopt.optimization.choice.selection import Chosen, mark
from edgeopt.optimization.choice.time_kept import forms_that_fit, judging_of, limit_with, processes_of, store_pace
from edgeopt.optimization.expected_progress import CONFIRM, MEASURE, measuring_s
from edgeopt.optimization.run import Run, model_file
from edgeopt.system.machine.affinity import threads_in_words
from edgeopt.system.processes.time_limit import LONGER, OutOfTime, limited, longer
from edgeopt.system.text import plural

INTERRUPTED = "the run was interrupted"
_TOO_LITTLE = "the time limit leaves too little time to measure them"
_AGAIN = "the same command with --resume takes up what is finished"


def decide(run: Run) -> Decision | None:
    """Measure all candidates of a run together and choose; None where this machine is not the target.

    A time limit that leaves no time for that leaves the original: what is not proven is not chosen.
    """
    if run.untimed:
        return None
    one_open = any(
        load_model(run.workspace.path(candidate.file), candidate.name).is_outside for candidate in run.candidates
    )
    text, left_s = ", one open at a time" if one_open else "", run.context.ends_at - monotonic()
    ends_s = max(run.context.ends_at + late_s(run.context.time_limit_s), monotonic())
    measured = candidates_that_fit(run, ends_s - monotonic())
    judging_s = judging_of(run, ends_s - monotonic())
    has_processes = not (run.openers or one_open)
    proving_s = processes_of(run, measured, ends_s - monotonic() - judging_s) if has_processes else 0.0
    run.course.expect(MEASURE, measuring_s(1 + len(measured), run.course.frame_s))
    run.course.begin(MEASURE)
    run.listener.say(
        f"measuring {plural(len(measured), 'candidate')} in turns, "
        f"{threads_in_words(run.plan.threads, run.plan.cores)}{text}"
    )
    by_name = {candidate.name: candidate for candidate in run.candidates}
    runnable = cache(lambda name: _runnable(run, by_name[name]))  # converted once, for turns and for fresh processes
    bench = Bench(
        openers={candidate.name: _opener(run, candidate, runnable) for candidate in measured},
        frames=run.timed,
        budget_ms=run.plan.budget_ms,
        workers=run.plan.threads,
        fresh=_fresh(run, runnable) if has_processes else None,
        seconds=min(MOST_SECONDS, max(left_s - max(CONFIRM_SECONDS, proving_s + judging_s), 3.0)),
        confirm_seconds=min(CONFIRM_SECONDS, max(left_s / 2, 0.0)),
        tell=run.listener.progress,
        one_open=one_open,
        time_limit_s=run.context.time_limit_s,
        until_s=ends_s - judging_s,
        turns_until_s=ends_s - judging_s - proving_s,
        process_s=run.context.proof.each_s if run.context.proof else None,
        limit_with=partial(limit_with, run, left_s) if run.context.time_limit_s else None,
        same=same_as_original(run, measured),
    )
    if bench.same:
        text = f"{', '.join(sorted(bench.same))}: the engine makes the original's own graph of it, no speed is claimed"
        run.context.notes.append(Note(NoteKind.INFO, text))
    try:
        with limited(ends_s):
            decision = measure_and_choose(run.candidates, bench, run.wish, partial(prove_accuracy, run))
    except OutOfTime:
        store_pace(run, 0.0)
        return untimed_decision(run, _TOO_LITTLE)
    store_pace(run, decision.slower)
    for name, samples in decision.samples.items():
        samples.save(run.workspace.path(model_file(name)).with_name("samples.npz"))
    for name, samples in decision.confirmed.items():
        samples.save(run.workspace.path(model_file(name)).with_name("confirmed.npz"))
    return decision


def candidates_that_fit(run: Run, left_s: float) -> list[Candidate]:
    """Return the candidates that are measured, the original first: all without a time limit.

    Under one, those whose turns fit into the time beside the proof of the best; the others are told.
    """
    if run.context.time_limit_s is None:
        return run.candidates
    kept, needed_s = forms_that_fit(run, left_s)
    if left_out := [candidate.name for candidate in run.candidates if candidate not in kept]:
        text = f"not measured, as there was time for fewer forms: {', '.join(left_out)}"
        remedy = longer(limit_with(run, left_s, max(needed_s - left_s, 0.0)))
        run.context.notes.append(Note(NoteKind.WARNING, text, remedy))
    return kept


def untimed_decision(run: Run, why: str) -> Decision:
    """Return that nothing was measured, and that the original stays.

    Args:
        run: With its candidates.
        why: One of `INTERRUPTED` and the like.
    """
    remedy = _AGAIN
    if why != INTERRUPTED:
        left_s, needed_s = run.context.ends_at - monotonic(), run.context.proof_s
        remedy = longer(limit_with(run, left_s, max(needed_s - left_s, 0.0))) if needed_s else LONGER
    return Decision(
        candidates=mark(run.candidates, run.wish),
        chosen=Chosen(BASELINE, f"the original stays: {why}"),
        samples={},
        confirmed={},
        trust=None,
        notes=(Note(NoteKind.WARNING, f"no candidate is proven faster: {why}", remedy),),
        untimed=why,
    )


def _opener(run: Run, candidate: Candidate, runnable: Callable[[str], Runnable]) -> Callable[[], Pipeline]:
    """Return how a candidate is opened here: a compiled one on its device, any other as in a fresh process."""
    if candidate.name not in run.openers:
        return runnable(candidate.name).open
    model = load_model(run.workspace.path(candidate.file), candidate.name)
    states = run.context.recipe.input.states
    return lambda: (run.context.task(model, evaluating=False), feed_back(run.open_candidate(candidate, model), states))


def _runnable(run: Run, candidate: Candidate) -> Runnable:
    model = load_model(run.workspace.path(candidate.file), candidate.name)
    engine = run.engine_of(candidate)
    return Runnable(
        opening=engine.opening(candidate.precision),
        source=engine.executor.converted(run.workspace.path(candidate.file).resolve()),
        recipe=run.context.recipe_of(model),
        inputs=model.inputs,
        outputs=model.outputs,
    )


def _fresh(run: Run, runnable: Callable[[str], Runnable]) -> Fresh:
    """Return how the original and some candidates run in turns in a fresh process."""
    feed = feed_of(run.timed)

    def once(names: Sequence[str], pace: Pace, seed: int) -> Turns:
        run.course.begin(CONFIRM)
        chosen = {name: runnable(name) for name in (BASELINE, *names)}
        return run_fresh(chosen, feed, pace, workers=run.plan.threads, seed=seed)

    return once
