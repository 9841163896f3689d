"""The candidates of a pipeline's models made here for a device elsewhere, which measures the whole with them."""

from __future__ import annotations

import shutil
from contextlib import closing
from functools import partial
from pathlib import Path
from time import monotonic

from edgeopt.errors import EdgeoptError
from edgeopt.executors._guard import guarded
from edgeopt.measurement.pipelines.code import load_calls
from edgeopt.optimization.elsewhere import make_for
from edgeopt.optimization.expected_progress import PartListener
from edgeopt.optimization.folder.handover import MadeHere, forget_handover, hand_over, handed_over
from edgeopt.optimization.options import Options
from edgeopt.optimization.pipelines.observe import observe_original
from edgeopt.optimization.pipelines.start import later_s, open_original, require_possible, started_pipeline
from edgeopt.optimization.run import Silence
from edgeopt.runtime.pipelines.description import read_description
from edgeopt.steps._context import Listener
from edgeopt.system.declared.target import TargetElsewhere


@guarded()
def make_stages_for(
    asked: str | Path,
    target: TargetElsewhere,
    *,
    named: str,
    code: Path | None,
    out: Path | None,
    options: Options,
    listener: Listener | None,
) -> MadeHere | str:
    """Make the candidates of each model of a pipeline for a device elsewhere, which measures the whole with them.

    Args:
        asked: As `optimize_pipeline`, like all that follow.
        target: See `find_device_elsewhere`.
        named: The target as it was named.
        code: The folder of the app's functions.
        out: Output folder; None: `out/PIPELINE-TARGET`.
        options: What to do.
        listener: Hears progress.

    Returns:
        The candidates, or why they cannot be made here: the pipeline itself does not run here.

    Raises:
        EdgeoptError: On what the user can mend before work begins, or where nothing can be written.
        KeyboardInterrupt: What is finished stays on disk, and a run that resumes takes it up.
    """
    hears, began_s = listener or Silence(), monotonic()
    require_possible(Path(asked), options)
    try:
        load_calls(read_description(Path(asked)), code)
    except EdgeoptError as error:  # its packages may be on the device alone
        return f"its functions do not run here: {error.problem}"
    with started_pipeline(Path(asked), named=named, code=code, out=out, options=options) as start:
        described = start.described(target.name)
        if handed_over(start.folder, described, resume=options.resume) is None:
            forget_handover(start.folder)
            try:
                opened = open_original(start, target.profile, 0)
                with closing(opened.open()) as pipeline:
                    observe_original(pipeline, start.pictures, start.inputs, hears.progress)
            except EdgeoptError as error:
                return f"it does not run here: {error.problem}"
            finally:
                shutil.rmtree(start.folder / "combinations", ignore_errors=True)  # opened for this machine
            hand_over(start.folder, described, [stage.name for stage in start.description.models], ())
        hears.say(f"{start.description.name}: candidates of each model are made here for {target.address}")
        for position, stage in enumerate(start.description.models, 1):
            hears.say("")
            hears.say(f"stage {stage.name}: {stage.model}")
            left = partial(later_s, began_s, len(start.description.models) - position)
            make_for(**start.wishes_of(stage), target=target, named=named, listener=PartListener(hears, left))
        return MadeHere(str(asked), start.folder)
