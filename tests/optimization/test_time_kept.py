"""How a time limit is shared between the search and the proof of what it finds, by made-up times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.measurement.accuracy.judgement import Word, judge_agreement, samples_that_agree
from edgeopt.measurement.accuracy.pool import HERE
from edgeopt.measurement.fresh_process.proof_time import ProofTime, SeenTimes
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.optimization.candidate import BASELINE, RESUMED, Candidate
from edgeopt.optimization.choice import judging_time
from edgeopt.optimization.choice.decide import candidates_that_fit
from edgeopt.optimization.choice.judging_time import forms_judged_in_time, samples_that_judge, tell_of_few_samples
from edgeopt.optimization.choice.selection import Wish
from edgeopt.optimization.choice.time_kept import (
    by_promise,
    judging_of,
    limit_with,
    processes_of,
    see_model,
    see_resumed,
    store_pace,
    stored_pace,
)
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.steps._context import Context, Engine
from edgeopt.system.declared.target import find_target
from edgeopt.system.disk.files import write_beside

PROOF = ProofTime(process_s=2.0, original=SeenTimes(0.1, 0.1))


def pictures(count: int) -> Frames:
    return Frames(tuple(f"{i}" for i in range(count)), lambda index: np.zeros(1, np.uint8), Path("made up"))


def form(name: str, agreement: float = 1.0, speedup: float = 2.0, *, is_lossy: bool = True) -> Candidate:
    speed = Ratio(speedup, speedup, speedup, Change.FASTER)
    return Candidate(name, "", (), "w8a8", f"{name}.onnx", 500, agreement=agreement, is_lossy=is_lossy, speed=speed)


def run_of(
    limit_s: float | None,
    proof: ProofTime | None = PROOF,
    *forms: Candidate,
    count: int = 100,
    folder: Path | None = None,
) -> Any:
    """Return a run that has its whole time before it, with some candidates; it writes into the folder."""
    rest: dict[str, Any] = dict.fromkeys(("target", "original", "files", "listener"))
    context = Context(
        **rest,
        recipe=SimpleNamespace(least_agreement=0.8),
        frames=pictures(count),
        quantizes=True,
        may_quantize=True,
        threads=1,
        time_limit_s=limit_s,
        engine=Engine(find_target("cpu-x86-vnni"), EXECUTOR, 1),
        ends_at=monotonic() + limit_s if limit_s else float("inf"),
        proof=proof,
    )
    baseline = replace(form(BASELINE), speed=None, size_bytes=1000)
    course = SimpleNamespace(frame_s=0.0)
    wish = Wish(0.01, least_agreement=0.8)

    def path(file: str) -> Path:
        return (folder or Path("nowhere")) / file

    def write(file: str, data: str) -> None:
        if folder:
            write_beside(path(file), data)

    workspace = SimpleNamespace(path=path, write=write)
    state = {"workspace": workspace, "labelled": None, "course": course, "wish": wish, "frame_ms": 0.0}
    return SimpleNamespace(context=context, candidates=[baseline, *forms], **state)


def seen(*frames_s: float) -> tuple[ProofTime, list[Candidate]]:
    """Return forms `form-0`, `form-1` and so on whose frames took so long in their scoring."""
    proof, forms = PROOF, list[Candidate]()
    for i, frame_s in enumerate(frames_s):
        proof, forms = proof.with_form(f"form-{i}", SeenTimes(0.1, frame_s)), [*forms, form(f"form-{i}")]
    return proof, forms


def names(candidates: list[Candidate]) -> list[str]:
    return [candidate.name for candidate in candidates]


def test_the_search_ends_earlier_the_longer_a_proof_takes_and_has_time_in_any_case():
    for process_s, kept_s in ((0.5, 20.0), (3.0, None), (50.0, 60.0)):
        context = run_of(100.0, replace(PROOF, process_s=process_s)).context
        assert context.ends_at - context.candidates_end == pytest.approx(kept_s or context.proof.kept_s)
        assert context.searches_end <= context.candidates_end - 10.0


def test_each_form_that_keeps_its_accuracy_changes_what_is_kept_and_others_do_not():
    run = run_of(100.0)
    before = run.context.proof_s
    see_model(run, form("wrong", agreement=0.3), SeenTimes(0.1, 0.01))
    assert [*run.context.proof.forms] == []
    see_model(run, form("right"), SeenTimes(0.1, 0.01))
    assert [*run.context.proof.forms] == ["right"]
    assert run.context.proof_s != before
    see_model(run, run.candidates[0], SeenTimes(0.2, 0.3))
    assert run.context.proof.original == SeenTimes(0.2, 0.3)
    run.candidates.append(form("right"))
    see_model(run, form("same bytes"), SeenTimes(0.05, 0.01))
    assert run.context.proof.forms["same bytes"].open_s == 0.1, "as long as the first that had the model converted"
    without = run_of(None, None)
    see_model(without, form("right"), SeenTimes(0.1, 0.01))
    assert without.context.proof is None


def test_time_to_judge_is_kept_with_labels_and_without_as_long_as_there_is_a_form():
    run = run_of(100.0, PROOF, form("form"), count=20)
    assert judging_of(run, 60.0) == pytest.approx(2 * 20 * 0.1)
    assert judging_of(run, 6.0) == pytest.approx(2.0), "no more than a third of what is left"
    assert judging_of(run_of(100.0, PROOF, count=20), 60.0) == 0.0
    sure = run_of(100.0, PROOF, form("form"), count=1000)
    assert judging_of(sure, 60.0) == pytest.approx(2 * 28 * 0.1), "twice what proves such an agreement"
    many = run_of(100.0, PROOF, form("form", 0.82), count=1000)
    assert judging_of(many, 60.0) == pytest.approx(10.0), "a tenth of the limit"
    many.labelled = SimpleNamespace(frames=pictures(1000))
    assert judging_of(many, 60.0) == pytest.approx(15.0)
    assert judging_of(run_of(None, None, form("form")), float("inf")) == 0.0


def test_processes_get_what_all_promising_forms_take_else_what_the_best_takes_else_nothing():
    proof, forms = seen(0.05, 0.06, 0.07, 0.08)
    run = run_of(100.0, proof, *forms)
    measured, turns_s = run.candidates, proof.turns_s(names(forms))
    best_s = proof.best_s(names(forms))
    assert best_s == pytest.approx(max(proof.processes_s([name]) for name in ("form-0", "form-1"))), "either may be it"
    assert processes_of(run, measured, 1000.0) == pytest.approx(1.2 * 6 * proof.each_s(["form-0", "form-1", "form-2"]))
    assert processes_of(run, measured, turns_s + best_s + 0.5) == pytest.approx(best_s + 0.5)
    assert processes_of(run, measured, turns_s + best_s - 0.5) == 0.0, "the turns then show what looks faster"
    assert processes_of(run, measured[:1], 1000.0) == 0.0
    assert processes_of(run_of(None, None, *forms), measured, float("inf")) == 0.0
    assert processes_of(run_of(100.0, None, *forms), measured, 30.0) == pytest.approx(15.0)


def test_where_not_all_forms_fit_the_fastest_are_measured_and_the_fastest_that_computes_the_same():
    proof, forms = seen(0.09, 0.02, 0.04, 0.03, 0.05)
    rewrite = replace(form("rewrite", is_lossy=False), drift=SimpleNamespace(worst_db=120.0))
    wrong = form("wrong", agreement=0.1)
    run = run_of(100.0, proof.with_form("rewrite", SeenTimes(0.1, 0.08)), wrong, *forms, rewrite)
    assert candidates_that_fit(run, 1e9) == run.candidates
    assert run.context.notes == []
    assert names(candidates_that_fit(run, 0.0)) == [BASELINE, "form-1", "form-3", "rewrite"]
    (note,) = run.context.notes
    assert note.detail.endswith("time for fewer forms: wrong, form-0, form-2, form-4")
    assert note.hint.startswith("give --time-limit 1")
    none = run_of(None, None, *forms)
    assert candidates_that_fit(none, 0.0) is none.candidates


def test_forms_whose_scoring_nobody_timed_are_measured_from_the_smallest_on():
    forms = [replace(form(f"form-{i}"), size_bytes=900 - i) for i in range(12)]  # of an earlier run, which is resumed
    run = run_of(100.0, PROOF, *forms)
    assert [each.name for each in by_promise(run, forms)][:3] == ["form-11", "form-10", "form-9"]


def test_a_resumed_run_knows_how_fast_its_forms_looked_when_they_were_scored(tmp_path):
    run = run_of(100.0, PROOF, folder=tmp_path)
    forms = [
        replace(form(name), size_bytes=size, sha256=name) for name, size in (("small", 1), ("fast", 9), ("other", 5))
    ]
    for each, frame_s in zip(forms[:2], (0.08, 0.02), strict=True):
        see_model(run, each, SeenTimes(0.2, frame_s))
    slower = replace(PROOF, original=SeenTimes(0.2, 0.3))  # the machine is busier now
    again = run_of(100.0, slower, folder=tmp_path)
    forms = [replace(each, notes=(RESUMED,)) for each in forms]
    for each in (*forms[:2], replace(forms[2], name="fast again"), replace(forms[1], name="small", sha256="changed")):
        see_resumed(again, each)
    known = again.context.proof.forms
    assert (known["fast"].frame_s, known["fast"].open_s) == pytest.approx((0.06, 0.4))
    assert [*known] == ["small", "fast"], "of other models nothing is known"
    assert [each.name for each in by_promise(again, forms[:2])] == ["fast", "small"]


def test_a_busy_moment_is_forgotten_and_counts_for_the_same_target_and_threads_alone(tmp_path):
    def begun(slower: float = 1.0, threads: int = 1) -> Any:
        run = run_of(100.0, replace(PROOF, slower=slower), folder=tmp_path)
        run.context.original = SimpleNamespace(fingerprint="a")
        run.context.target, run.context.threads = find_target("cpu"), threads
        return run

    assert stored_pace(begun()) == 1.0
    store_pace(begun(), 9.0)
    expected = [stored_pace(begun())]
    assert stored_pace(begun(threads=2)) == 1.0
    for _ in range(3):
        store_pace(begun(expected[-1]), 0.0)  # what is expected lets no process run
        expected.append(stored_pace(begun()))
    assert expected == pytest.approx([2.0, 2**0.5, 2**0.25, 2**0.125])
    store_pace(begun(2.0), 0.5)
    assert stored_pace(begun()) == 1.0, "the processes took what was seen"
    (tmp_path / "candidates" / "proof_time.json").write_text("[]")
    assert stored_pace(begun()) == 1.0


@pytest.mark.parametrize("process_s", [0.7, 2.0, 6.0])
@pytest.mark.parametrize("limit_s", [20.0, 60.0])
def test_the_limit_that_is_told_keeps_what_was_missing(process_s, limit_s):
    """However little of the limit was left: under the one that is told, the search leaves what the proof needs."""
    proof, forms = seen(0.09, 0.08)
    proof = replace(proof, process_s=process_s)
    needed_s = proof.needed_s(names(forms))
    for left_s in (0.0, 0.5 * needed_s):
        enough_s = limit_with(run_of(limit_s, proof, *forms), left_s, needed_s - left_s)
        context = run_of(enough_s, proof, *forms).context
        assert enough_s >= limit_s + needed_s - left_s
        assert context.ends_at - context.candidates_end >= needed_s - 1e-6


def test_samples_that_judge_and_forms_that_are_judged_follow_from_the_time_that_is_left():
    fast, safe = form("fast", 0.87, 3.0), form("safe", 0.99, 1.2)
    assert samples_that_agree(0.87, 0.8) > samples_that_agree(0.99, 0.8) > 0
    ample = run_of(600.0, PROOF, fast, safe)
    assert len(samples_that_judge(ample, 2)) == 100
    assert forms_judged_in_time(ample, [safe, fast]) == [safe, fast]
    short = run_of(100.0, PROOF, fast, safe)
    assert len(samples_that_judge(short, 2)) == 33
    assert len(samples_that_judge(short, 1)) == 50
    assert forms_judged_in_time(short, [safe, fast]) == [fast]
    (note,) = short.context.notes
    assert note.detail == "accuracy not judged, as there was time for fewer forms: safe"
    wanted = samples_that_agree(0.87, 0.8)
    enough_s = float(note.hint.removeprefix("give --time-limit ").removesuffix("s or more"))
    assert len(samples_that_judge(run_of(enough_s, PROOF, fast, safe), 2)) >= wanted
    elsewhere = run_of(100.0, PROOF, fast, safe)
    elsewhere.context.pool = object()
    assert forms_judged_in_time(elsewhere, [safe, fast]) == [safe, fast]
    assert short.context.pool is HERE
    for limit_s, why in (
        (50.0, "37 samples do not decide on fast"),
        (20.0, "it needs the fewest, if time decides on none"),
    ):
        assert forms_judged_in_time(run_of(limit_s, PROOF, fast, safe), [safe, fast]) == [safe], why


def test_where_labels_judge_as_many_forms_are_judged_as_there_is_time_for_by_their_own_speed(monkeypatch):
    """The original takes 30 s for all labels, fast 10 s, safe 25 s."""
    fast, safe = form("fast", 0.9, 3.0), form("safe", 0.99, 1.2)

    def judged_in(left_s: float, *known: Candidate) -> list[str]:
        run = run_of(1000.0, PROOF, fast, safe)
        run.context.ends_at = monotonic() + left_s - 7.5  # as late as measuring may go on
        run.labelled = SimpleNamespace(frames=pictures(300), labels=SimpleNamespace(files=(), source=""))
        monkeypatch.setattr(judging_time, "_scored_before", lambda run, tested: [*known])
        return names(forms_judged_in_time(run, [safe, fast]))

    assert judged_in(66.0) == ["safe", "fast"]
    assert judged_in(41.0) == ["fast"]
    assert judged_in(35.0) == ["safe", "fast"], "the safest first, as far as the time goes"
    assert judged_in(41.0, safe) == ["safe", "fast"], "an earlier run scored it"
    assert judged_in(35.0, safe) == ["safe"]


def test_too_few_samples_for_lack_of_time_are_told_with_the_limit_that_leaves_enough():
    run = run_of(60.0, PROOF, form("fast", 0.87))
    judged = judge_agreement(0.87, [*[1.0] * 14, 0.0, 0.0], 0.8)
    assert judged.word is Word.NOT_DECIDED
    tell_of_few_samples(run, pictures(16), [judged])
    (note,) = run.context.notes
    assert note.detail == "accuracy is judged on 16 of 100 pictures: the time limit left no more"
    enough_s = float(note.hint.removeprefix("give --time-limit ").removesuffix("s or more"))
    assert len(samples_that_judge(run_of(enough_s, PROOF), 1)) >= judged.wanted
    tell_of_few_samples(run, pictures(100), [judged])
    assert len(run.context.notes) == 1
