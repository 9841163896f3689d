"""The steps `quantize` and `compile` for a target that is compiled for ahead of time.

Each form of the model is a candidate: scored on the CPU, placed, compared and scored on the device or its simulator,
and compiled. The cheapest that keeps its accuracy there ends the search. It measures no time.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from time import monotonic
from typing import Any

from edgeopt.errors import UnsupportedError
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.measurement.accuracy.bootstrap import score
from edgeopt.measurement.accuracy.judgement import judge_scores
from edgeopt.measurement.accuracy.parallel import simulate_answers
from edgeopt.optimization.candidate import Candidate
from edgeopt.optimization.candidates.scoring import add_candidate, score_candidate, store_candidate, stored_baseline
from edgeopt.optimization.choice.accuracy_proof import answers_of_original, judge_answers
from edgeopt.optimization.choice.judging_time import samples_that_judge
from edgeopt.optimization.choice.label_looks import count_look
from edgeopt.optimization.choice.stored_scores import ScoredAnswers, store_scores
from edgeopt.optimization.folder.resume import stored_candidates
from edgeopt.optimization.report.summary import candidate_line
from edgeopt.optimization.run import Run
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.steps._context import CHECKED_PICTURES, Setting, numbered, out_of_time
from edgeopt.steps.compile import forms_for
from edgeopt.steps.compile._form import DeviceForm
from edgeopt.steps.compile._partition_files import partition_files
from edgeopt.steps.compile._placement import Partition
from edgeopt.system.machine.processor import cpu_name
from edgeopt.system.machine.threads import physical_cores
from edgeopt.tasks import Task


def offer_forms(run: Run, model: Model, parent: Candidate) -> None:
    """Make forms of a float model until one keeps its accuracy on the device.

    Args:
        run: Its one alternative is the device.
        model: The float model, as the device's compiler takes it.
        parent: Its candidate.

    Raises:
        UnsupportedError: If the device can run no form of it at all; the message names nodes and reasons.
        StepError: If the vendor's library dies or hangs.
    """
    if monotonic() > run.context.ends_at:
        run.context.notes.append(out_of_time("any form was made"))
        return
    first = _steps_of_forms(run)[-1]
    finished = stored_candidates(run, first)
    for candidate in finished:
        setting = Setting(run.context.engine, candidate.precision, candidate.name)
        add_candidate(run, candidate.name, parent.name, candidate.steps, Outcome(model, {}), setting, resumed=candidate)
    if any(run.wish.keeps(candidate) for candidate in finished):
        return
    forms = forms_for(model, run.context, Setting(run.context.engine, "fp32", first))
    # Forms are tried until one keeps its accuracy: each is tested at its share of the level.
    before = stored_baseline(run)
    if run.labelled and before:
        count_look(run, before.pictures_sha256)
    share = 1 / max(len(forms), 1)
    for i, form in enumerate(forms):
        if i < len(finished):
            continue
        if i and monotonic() > run.context.ends_at:
            run.context.notes.append(out_of_time(form.name))
            return
        if run.wish.keeps(_add_form(run, numbered(first, i), form, parent, share)):
            return


def _steps_of_forms(run: Run, *, is_quantized: bool = True) -> tuple[str, ...]:
    """Return the planned steps that make a form."""
    on_device = {name: step for name, step in run.plan.steps.items() if step.on_device}
    return tuple(name for name, step in on_device.items() if is_quantized or not step.needs_calibration)


def _is_compiled(run: Run) -> bool:
    return "compile" in run.plan.steps


def _add_form(run: Run, name: str, form: DeviceForm, parent: Candidate, share: float) -> Candidate:
    """Score one form on the CPU and on the device, compile it, store it and tell of it."""
    device = run.context.alternatives[0].target
    steps = (*parent.steps, *_steps_of_forms(run, is_quantized=form.is_quantized))
    candidate = score_candidate(run, name, parent.name, steps, form, Setting(run.context.engine, "fp32", name))
    candidate = replace(candidate, precision=form.precision, executor=device.executor, profile=device.name)
    partition = form.place()
    for file, text in partition_files(partition).items():
        run.workspace.write(candidate.file.replace("model.onnx", file), text)
    candidate = replace(candidate, placement=partition.verdict)
    try:
        candidate = _proven(run, candidate, form, partition)
    except UnsupportedError as error:
        candidate = replace(candidate, unfit=error.problem)
    else:
        candidate = _scored_on_device(run, candidate, form, share)
    run.openers[name] = form.open
    store_candidate(run, candidate, form.model)
    run.candidates.append(candidate)
    run.listener.say(candidate_line(candidate))
    return candidate


def _proven(run: Run, candidate: Candidate, form: DeviceForm, partition: Partition) -> Candidate:
    """Return the candidate compiled, its numbers compared with the CPU's.

    Raises:
        UnsupportedError: If the device does not take it, or computes something else.
    """
    inputs = run.context.inputs(CHECKED_PICTURES, form.model)
    if not _is_compiled(run):
        return replace(candidate, notes=(*candidate.notes, *form.prove(partition, None, inputs)))
    compiled = candidate.file.replace("model.onnx", f"npu/model{form.suffix}")
    out = run.workspace.path(compiled)
    shutil.rmtree(out.parent, ignore_errors=True)
    notes = (*candidate.notes, *form.prove(partition, out, inputs))
    return replace(candidate, compiled=compiled, size_bytes=out.stat().st_size, notes=notes)


def _scored_on_device(run: Run, candidate: Candidate, form: DeviceForm, share: float) -> Candidate:
    """Return the candidate judged with the device's numbers: by the labels, or by its agreement."""

    def make_task() -> Task:
        return run.context.task(form.model, evaluating=True)

    def tell(_: str, done: int, of: int) -> None:
        run.listener.progress(f"{'simulate' if run.untimed else 'evaluate'} {candidate.name}", done, of)

    def answers_to(frames: Frames) -> list[Any]:
        return simulate_answers(form.open, make_task, frames, processes=physical_cores(), tell=tell)

    task, before = make_task(), stored_baseline(run)
    if run.labelled and before:
        scored = score(task, answers_to(run.labelled.frames), run.labelled.labels)
        store_scores(run, candidate, ScoredAnswers(scored, None, cpu_name(), share))
        level, later = share * run.look.level, share * run.look.later
        judged = judge_scores(before, scored, run.plan.max_drop, level=level, later=later)
        return replace(candidate, simulated=scored.accuracy, judgement=judged)
    agreement = task.agreement(answers_to(run.context.judged_pictures), run.context.reference)
    candidate = replace(candidate, agreement=agreement)
    if not run.wish.keeps(candidate):
        return candidate
    frames = samples_that_judge(run, 1)
    return replace(candidate, judgement=judge_answers(run, task, answers_to(frames), answers_of_original(run, frames)))
