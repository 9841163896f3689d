"""The steps `quantize` and `compile` for a target that is compiled for ahead of time.

Each form of the model is a candidate: scored on the CPU, placed, compared and scored on the device or its simulator,
and compiled. The cheapest that keeps its accuracy there ends the search. It measures no time.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic

from edgeopt.candidate import Candidate, Score
from edgeopt.compile import Numbers, check_numbers, compile_model
from edgeopt.environment import physical_cores
from edgeopt.errors import Note, NoteKind, UnsupportedError
from edgeopt.evaluate import model_inputs
from edgeopt.model import Model
from edgeopt.outcome import Outcome
from edgeopt.partition_picture import draw_partition
from edgeopt.placement import Partition, explain_placement
from edgeopt.quantization.htp_forms import HtpForm, find_htp_forms
from edgeopt.search import LEAST_AGREEMENT, is_within
from edgeopt.simulate import simulate_answers, simulate_metric
from edgeopt.tasks import Task
from edgeopt.trial import (
    AGREEMENT_PICTURES,
    CALIBRATION_PICTURES,
    CHECKED_PICTURES,
    Engine,
    Setting,
    Trial,
    add_candidate,
    finished_candidates,
    numbered,
    reference_answers,
    score_candidate,
)

NAME = "compile"
PICTURE = "partition.svg"


def offer_forms(run: Trial, model: Model, parent: Candidate) -> None:
    """Make forms of a float model until one keeps its accuracy on the device.

    Args:
        run: Its one alternative is the device.
        model: The float model, as the device's compiler takes it.
        parent: Its candidate.

    Raises:
        UnsupportedError: If the device can run no form of it at all; the message names nodes and reasons.
        StepError: If the vendor's library dies or hangs.
    """
    finished = finished_candidates(run, NAME) if run.resume else []
    for one in finished:
        add_candidate(run, one.name, parent.name, one.steps, Outcome(model, {}), Setting(run.engine, ""), resumed=one)
    if any(_is_accepted(run, one) for one in finished):
        return
    for i, form in enumerate(_forms(run, model)):
        if i < len(finished):
            continue
        if i and monotonic() > run.deadline:
            run.notes.append(Note(NoteKind.WARNING, f"time budget spent before {form.name}", "give --time-budget more"))
            return
        if _is_accepted(run, _add_form(run, numbered(NAME, i), form, model, parent)):
            return


def _is_accepted(run: Trial, candidate: Candidate) -> bool:
    if candidate.unfit:
        return False
    if candidate.drop is not None:
        return is_within(candidate.drop, run.plan.max_drop)
    return (candidate.agreement or 0.0) >= LEAST_AGREEMENT


def _forms(run: Trial, model: Model) -> Sequence[HtpForm]:
    target = run.target
    if not any(step.name == "quantize" for step in run.plan.steps):
        if "fp16" not in target.precisions:
            raise UnsupportedError(
                f"{target.name} runs integers only, and the step quantize is left out",
                remedy="pass --calib FOLDER with about 100 unlabelled pictures, or choose a newer target",
            )
        return (HtpForm("fp16", "fp16", Outcome(model, {}), 1.0, 0.0),)
    pictures = run.frames.spread(CALIBRATION_PICTURES)

    def agreement(candidate: Model) -> float:
        session = run.engine.open(candidate, "fp32")
        found = reference_answers(run, session, candidate)
        session.close()
        return run.task(candidate, evaluating=True).agreement(found, run.reference)

    return find_htp_forms(
        model,
        model_inputs(run.task(model, evaluating=True), pictures),
        target,
        agreement=agreement,
        progress=lambda done: run.listener.progress("calibrate", done, len(pictures)),
        on_form=lambda one: run.listener.say(f"  {one.name}: agreement {one.agreement:.3f} on the CPU"),
    )


def _add_form(run: Trial, name: str, form: HtpForm, original: Model, parent: Candidate) -> Candidate:
    """Score one form on the CPU and on the device, compile it, store it and tell of it."""
    device, made = run.alternatives[0], form.outcome.model
    steps = (*parent.steps, *(("quantize",) if form.precision != "fp16" else ()), "compile")
    candidate = score_candidate(run, name, parent.name, steps, form.outcome, Setting(run.engine, "fp32"))
    how = {"precision": form.precision, "executor": device.target.executor, "profile": device.target.name}
    candidate = replace(candidate, **how)  # type: ignore[arg-type]
    partition = explain_placement(made, device.target)
    run.workspace.write(candidate.file.replace("model.onnx", PICTURE), draw_partition(partition))
    candidate = replace(candidate, placement=partition.verdict)
    try:
        numbers = _compile(run, candidate, made, original, partition)
    except UnsupportedError as error:
        candidate = replace(candidate, unfit=error.problem, drop=None)
    else:
        compiled = "" if _leaves_out_compile(run) else compiled_file(candidate)
        candidate = replace(candidate, compiled=compiled, notes=(*candidate.notes, _of_numbers(numbers)))
        candidate = _scored_on_device(run, candidate, made, device)
    run.workspace.store(candidate, made.data)
    run.candidates.append(candidate)
    run.listener.candidate(candidate)
    return candidate


def compiled_file(candidate: Candidate) -> str:
    """Return where a candidate's context binary lies in the output folder."""
    return candidate.file.replace("model.onnx", "npu/model.onnx")


def _leaves_out_compile(run: Trial) -> bool:
    return not any(step.name == "compile" for step in run.plan.steps)


def _compile(run: Trial, candidate: Candidate, made: Model, original: Model, partition: Partition) -> Numbers:
    """Prove that the device takes all nodes and computes what the CPU computes; write its binary."""
    if partition.refused or partition.problem:
        reasons = "; ".join(f"{one.op} {one.node!r}: {one.reason}" for one in partition.refused[:3])
        raise UnsupportedError(f"{partition.verdict}{f' ({reasons})' if reasons else ''}", remedy="choose another target")
    target, inputs = run.alternatives[0].target, run.inputs(CHECKED_PICTURES, made)
    if _leaves_out_compile(run):
        return check_numbers(made, target, inputs, original)
    out = run.workspace.path(compiled_file(candidate))
    shutil.rmtree(out.parent, ignore_errors=True)
    return compile_model(made, target, out, inputs, original=original).numbers


def _of_numbers(numbers: Numbers) -> Note:
    where = "simulated device" if numbers.simulated else "device"
    found = f"SQNR {numbers.device.sqnr_db:.1f} dB, cosine {numbers.device.cosine:.5f}"
    return Note(NoteKind.INFO, f"{where} against the CPU on {CHECKED_PICTURES} pictures: {found}")


def _scored_on_device(run: Trial, candidate: Candidate, made: Model, device: Engine) -> Candidate:
    """Return the candidate with the metric, or without labels the agreement, that the device's numbers give."""

    def make_task() -> Task:
        return run.task(made, evaluating=True)

    def tell(_: str, done: int, of: int) -> None:
        run.listener.progress(f"{'simulate' if run.untimed else 'evaluate'} {candidate.name}", done, of)

    processes = physical_cores()
    if run.labelled is None:
        pictures = run.pictures.spread(AGREEMENT_PICTURES)
        found = simulate_answers(
            lambda: device.open(made, candidate.precision), make_task, pictures, processes=processes, tell=tell
        )
        return replace(candidate, agreement=make_task().agreement(found, run.reference))
    accuracy = simulate_metric(
        lambda: device.open(made, candidate.precision), make_task, run.labelled, processes=processes, tell=tell
    )
    baseline = run.candidates[0].score
    return replace(
        candidate,
        simulated=Score(accuracy.metric, accuracy.value, accuracy.n, dict(accuracy.others)),
        drop=baseline.value - accuracy.value if baseline else None,
    )
