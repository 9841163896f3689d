"""The steps `quantize` and `compile` for a target that is compiled for ahead of time.

Each form of the model is a candidate: scored on the CPU, placed, compared and scored on the device or its simulator,
and compiled. The cheapest that keeps its accuracy there ends the search. It measures no time.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from time import monotonic

from edgeopt.errors import UnsupportedError
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.measurement.accuracy.parallel import simulate_answers, simulate_metric
from edgeopt.pipeline.candidate import Candidate
from edgeopt.pipeline.resume import stored_candidates
from edgeopt.pipeline.run import Run
from edgeopt.pipeline.scoring import add_candidate, score_candidate, store_candidate
from edgeopt.pipeline.summary import candidate_line
from edgeopt.steps._context import CHECKED_PICTURES, Setting, numbered, out_of_time
from edgeopt.steps.compile import forms_for
from edgeopt.steps.compile._form import DeviceForm
from edgeopt.steps.compile._partition_files import partition_files
from edgeopt.steps.compile._placement import Partition
from edgeopt.system.threads import physical_cores
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
    for one in finished:
        setting = Setting(run.context.engine, one.precision, one.name)
        add_candidate(run, one.name, parent.name, one.steps, Outcome(model, {}), setting, resumed=one)
    if any(run.wish.keeps(one) for one in finished):
        return
    for i, form in enumerate(forms_for(model, run.context, Setting(run.context.engine, "fp32", first))):
        if i < len(finished):
            continue
        if i and monotonic() > run.context.ends_at:
            run.context.notes.append(out_of_time(form.name))
            return
        if run.wish.keeps(_add_form(run, numbered(first, i), form, parent)):
            return


def _steps_of_forms(run: Run, *, is_quantized: bool = True) -> tuple[str, ...]:
    """Return the planned steps that make a form."""
    on_device = {name: step for name, step in run.plan.steps.items() if step.on_device}
    return tuple(name for name, step in on_device.items() if is_quantized or not step.needs_calibration)


def _is_compiled(run: Run) -> bool:
    return "compile" in run.plan.steps


def _add_form(run: Run, name: str, form: DeviceForm, parent: Candidate) -> Candidate:
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
        candidate = replace(candidate, unfit=error.problem, drop=None, drop_low=None, drop_high=None)
    else:
        candidate = _scored_on_device(run, candidate, form)
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


def _scored_on_device(run: Run, candidate: Candidate, form: DeviceForm) -> Candidate:
    """Return the candidate with the metric, or without labels the agreement, that the device's numbers give."""

    def make_task() -> Task:
        return run.context.task(form.model, evaluating=True)

    def tell(_: str, done: int, of: int) -> None:
        run.listener.progress(f"{'simulate' if run.untimed else 'evaluate'} {candidate.name}", done, of)

    processes = physical_cores()
    if run.labelled is None:
        pictures = run.context.judged_pictures
        found = simulate_answers(form.open, make_task, pictures, processes=processes, tell=tell)
        return replace(candidate, agreement=make_task().agreement(found, run.context.reference))
    accuracy = simulate_metric(form.open, make_task, run.labelled, processes=processes, tell=tell)
    baseline = run.candidates[0].score
    return replace(
        candidate,
        simulated=accuracy,
        drop=baseline.value - accuracy.value if baseline else None,
        drop_low=None,
        drop_high=None,
    )
