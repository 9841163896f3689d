"""The candidates of a run made here for a device elsewhere, which takes them up, measures them and chooses."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic

from edgeopt.errors import UnavailableError
from edgeopt.executors._guard import guarded
from edgeopt.export.network import NetworkInput
from edgeopt.optimization.candidates.make import make_candidates
from edgeopt.optimization.folder.handover import MadeHere, hand_over
from edgeopt.optimization.optimize import exported_first, folder_of_run, planned
from edgeopt.optimization.options import Options
from edgeopt.optimization.run import Silence
from edgeopt.optimization.start import begun, read_given, start_run
from edgeopt.runtime.devices.availability import find_device_elsewhere, is_by_rule, is_compiled, why_unavailable
from edgeopt.steps._context import CALIBRATION, Listener
from edgeopt.steps._pruning import parse_pruning
from edgeopt.system.declared.target import Target, TargetElsewhere
from edgeopt.system.machine.processor import Processor


def searched_target(
    name: str, address: str, processor: Processor, options: Options | None = None
) -> TargetElsewhere | str:
    """Return the target of a device elsewhere, as candidates are made for it here; why none can be, where so.

    Args:
        name: Shipped name, or path of a TOML file.
        address: Of the device, as `--on` takes it.
        processor: Of the device.
        options: What is done with models of frames; None: it is another kind of model.

    Raises:
        NotFoundError: If there is no such target.
        InvalidFileError: If its file is wrong.
    """
    try:
        target = find_device_elsewhere(name, address, processor)
    except UnavailableError as error:
        return error.problem
    if options is not None and (why_not := why_not_made_here(target, options)):
        return why_not
    if is_compiled(target) or is_by_rule(target):
        return target
    return why_unavailable(target) or target


def why_not_made_here(target: Target, options: Options) -> str:
    """Return why candidates for a device elsewhere cannot be made here; empty where they can."""
    if options.replay:
        return "a replay makes what another run made"
    if is_compiled(target):
        return f"{target.name} compiles on the device"
    pruning = parse_pruning(options.prune, options.keep_layers)
    is_predicted = isinstance(target, TargetElsewhere) and target.times is not None
    if pruning and pruning.speedup and not is_predicted:
        return f"--prune {options.prune} prunes by the device's own times"
    return ""


@guarded()
def make_for(
    model: str | Path,
    target: TargetElsewhere,
    *,
    out: Path | None,
    recipe: str | None,
    options: Options,
    listener: Listener | None,
    inputs: Sequence[NetworkInput] = (),
    task: str = "",
    named: str,
    began_s: float | None = None,
) -> MadeHere:
    """Make the candidates of a model for a device elsewhere, ready to be taken up there by the same command.

    Args:
        model: As `optimize`, like all that follow.
        target: See `find_device_elsewhere`.
        out: Output folder of the run; None: `out/MODEL-TARGET`.
        recipe: Shipped name or path; None: read from the model.
        options: What to do.
        listener: Hears progress.
        inputs: Of a source that `edgeopt export` takes.
        task: Of such a source.
        named: The target as it was named.
        began_s: When a time limit began, on the monotonic clock; None: now.

    Raises:
        EdgeoptError: On what the user can mend before work begins, or where nothing can be written.
        KeyboardInterrupt: What is finished stays on disk, and a run that resumes takes it up.
    """
    began_s, heard = monotonic() if began_s is None else began_s, listener or Silence()
    heard.say(f"making candidates here for {target.address}, which measures them")
    file = exported_first(model, named, out, options, heard, inputs=inputs, task=task)
    given, pictures = read_given(str(file), target, recipe, options)
    folder = folder_of_run(out, given.model.name, named)
    plan = planned(given, replace(options, emit=()), folder)  # the device writes what it chose
    run = start_run(given, pictures, plan, folder, options.resume, None, heard, began_s)
    with begun(run, given):
        if run.workspace.handover is None:  # else an earlier command made them all
            make_candidates(run)
            shutil.rmtree(run.workspace.path(CALIBRATION), ignore_errors=True)  # no search of this machine follows
            notes = [note for note in run.context.notes if note not in run.of_engines]
            hand_over(folder, run.workspace.described, [*plan.steps], notes)
    return MadeHere(str(file), folder)
