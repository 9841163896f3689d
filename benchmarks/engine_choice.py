"""Does a whole search with every engine choose what no engine's own form beats?

    PYTHONPATH=toolkit python benchmarks/engine_choice.py FOLDER ... [--pictures FOLDER] [--seconds 4]

Each FOLDER is written by `edgeopt optimize MODEL -t cpu --threads 1 --skip prune`, with every engine installed. The
chosen form and all that the search measured nearly as fast run again in turns, execution alone, on the first of
--pictures as the recipe in the bundle feeds it (without them on noise). A row:

- the time of ONNX Runtime's float32, and the speed of the chosen form over it, as the search measured them;
- what the search proved of its accuracy;
- the form that "export to every format, take the fastest" picks, which is the fastest of each engine's floats and first
  INT8 form whatever it answers: its speed over that of the chosen form, and its accuracy as the search proved it. Where
  the search did not judge it, its agreement with the original on 200 of --pictures, with the lower bound (95 %);
- SLOWER, where a form that keeps its accuracy is proven faster than the chosen one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from engines import inputs_of

from edgeopt.errors import EdgeoptError, UnavailableError
from edgeopt.executors import Session
from edgeopt.executors._guard import guarded
from edgeopt.graph.model import load_model
from edgeopt.measurement.accuracy.evaluate import answers
from edgeopt.measurement.accuracy.judgement import judge_agreement
from edgeopt.measurement.turns.calls import call_of, compare_calls
from edgeopt.optimization.choice.accuracy_proof import agreement_of_each
from edgeopt.recipes.binding import ChosenRecipe, bind_recipe
from edgeopt.recipes.inputs.frames import Frames, open_frames
from edgeopt.runtime.bundle import read_bundle
from edgeopt.runtime.opening import opening_for
from edgeopt.system.declared.target import find_target
from edgeopt.tasks import FrameTask, make_task

HEAD = ("model", "onnxruntime fp32", "chosen", "speed", "accuracy", "fastest of all", "over the chosen", "accuracy", "")
BASELINE = "baseline"
_NEAR = 0.85
"""Forms that the search measured at this share of the fastest one's speed or more run again in turns."""
_JUDGED = 200
_LATER = ("-2", "-3", "-4")
"""How the names end of INT8 forms that the search made after an engine's first."""

Form = Mapping[str, Any]


def opened(folder: Path, form: Form, threads: int, stack: ExitStack) -> Session:
    """Open a form of a report in its engine, as the search does."""
    target = find_target(form["profile"] or "cpu")
    target = replace(target, options={**target.options, **form["options"]})
    session = opening_for(target, form["precision"], threads).open(load_model(folder / form["file"]).source)
    stack.callback(session.close)
    return session


def row(folder: Path, frames: Frames | None, seconds: float) -> Sequence[str]:
    """Return the cells of one search."""
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    forms = {form["name"]: form for form in report["candidates"] if form["latency"]}
    if BASELINE not in forms:
        raise UnavailableError("the search measured nothing", remedy="give --time-limit more")
    chosen = report["chosen"]
    speeds = {name: form["execute"]["speedup"] if form["execute"] else 1.0 for name, form in forms.items()}
    near = [name for name in forms if speeds[name] >= _NEAR * max(speeds.values())]
    with guarded(), ExitStack() as stack:
        names = dict.fromkeys((BASELINE, chosen, *near))
        sessions = {name: opened(folder, forms[name], report["threads"], stack) for name in names}
        task = task_of(folder, sessions[BASELINE])
        inputs = task.preprocess(frames.read(0))[0] if frames is not None else inputs_of(sessions[BASELINE], 0)
        calls = {name: call_of(session, inputs) for name, session in sessions.items()}
        ratios = compare_calls(calls, baseline=chosen, seconds=seconds, block=5) if len(calls) > 1 else {}
        first = {name: ratio.speedup for name, ratio in ratios.items() if not name.endswith(_LATER)}
        fastest = max(first, key=lambda name: first[name], default=chosen)
        if first.get(fastest, 0) <= 1:
            fastest = chosen
        accuracy = _proven(forms[fastest]) or _agreement(task, sessions, fastest, frames)
    beaten = [name for name, ratio in ratios.items() if ratio.low > 1 and _is_kept(forms[name])]
    return [
        report["model"],
        f"{forms[BASELINE]['latency']['stages']['execute']['p50_ms']:.2f} ms",
        chosen,
        _speed(forms[chosen]["execute"]),
        _proven(forms[chosen]),
        fastest if fastest != chosen else "the same",
        str(ratios[fastest]) if fastest != chosen else "",
        accuracy if fastest != chosen else "",
        f"SLOWER than {', '.join(beaten)}" if beaten else "",
    ]


def _speed(measured: Mapping[str, Any] | None) -> str:
    return "1.00x" if measured is None else "{speedup:.2f}x [{low:.2f}, {high:.2f}]".format(**measured)


def _is_kept(form: Form) -> bool:
    return form["judgement"] is not None and form["judgement"]["word"] in ("KEPT", "AGREES")


def _proven(form: Form) -> str:
    """Return what a search proved of a form's accuracy; empty where it did not judge it."""
    judged = form["judgement"]
    if judged is None or not judged["samples"]:
        return "float32" if form["precision"] == "fp32" else ""
    word, samples = judged["word"], judged["samples"]
    if judged["drop"] is not None:
        return "{word}: drop {drop:.4f} [{drop_least:.4f}, {drop_most:.4f}], n {samples}".format(**judged)
    if judged["agreement"] is None:
        return f"{word}, n {samples}"
    return "{word}: {agreement:.3f}, at least {agreement_least:.3f}, n {samples}".format(**judged)


def task_of(folder: Path, original: Session) -> FrameTask:
    """Return how the search fed the original and read its answers: a recipe of one's own lies in the bundle alone."""
    recipe = replace(read_bundle(folder / "bundle").recipe, embedded=())
    bound = bind_recipe(ChosenRecipe(recipe, ""), original.inputs, original.outputs, {}, {}).recipe
    return make_task(bound, original.inputs, original.outputs, evaluating=True)


def _agreement(task: FrameTask, sessions: Mapping[str, Session], name: str, frames: Frames | None) -> str:
    """Return the agreement of a form with the original's answers to pictures."""
    if frames is None or name == BASELINE:
        return ""
    original = sessions[BASELINE]
    kept = frames.select(range(min(_JUDGED, len(frames))))
    reference, changed = answers(original, task, kept), answers(sessions[name], task, kept)
    each = agreement_of_each(task, changed, reference)
    judged = judge_agreement(task.agreement(changed, reference), each, 0.99)
    return f"{judged.agreement:.3f}, at least {judged.agreement_least:.3f}, n {judged.samples}"


def main(folders: Sequence[Path], pictures: Path | None, seconds: float) -> None:
    """Print the table."""
    frames = open_frames(pictures) if pictures is not None else None
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}", flush=True)
    for folder in folders:
        try:
            cells = row(folder, frames, seconds)
        except EdgeoptError as error:
            cells = [folder.name, f"refused: {error.problem}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--seconds", type=float, default=4.0)
    arguments = parser.parse_args()
    main(arguments.folders, arguments.pictures, arguments.seconds)
