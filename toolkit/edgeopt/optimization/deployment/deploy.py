"""The contents of a bundle: the choice, the device's fallback, lighter models for an app, and their test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from edgeopt.errors import Note, NoteKind, UnsupportedError
from edgeopt.executors._guard import active_guard
from edgeopt.executors.onnxruntime.providers import CPU, TENSORRT
from edgeopt.export.companions import companions_of
from edgeopt.graph.files.outside import PieceLayout, sha256_of
from edgeopt.graph.model import load_model
from edgeopt.optimization.candidate import Candidate
from edgeopt.optimization.deployment.embedding import EmbeddedParts
from edgeopt.optimization.deployment.lighter import judged_lighter
from edgeopt.optimization.deployment.recording import BundlePart, Recorder, p50_of, samples_of_test, selftest_of
from edgeopt.optimization.run import Run
from edgeopt.recipes.inputs.preprocess import Preprocess
from edgeopt.recipes.recipe import Recipe
from edgeopt.runtime.bundle import Bundle, make_artefact, write_bundle
from edgeopt.runtime.bundles.models import in_bundle
from edgeopt.runtime.bundles.parts import Artefact, Expected
from edgeopt.runtime.bundles.targets import MEASURED_ON, ORIGINAL, this_machine
from edgeopt.runtime.devices.availability import load_executor
from edgeopt.runtime.drift.sketch import FILE as SKETCH_FILE
from edgeopt.runtime.drift.sketch import pack as pack_sketch
from edgeopt.runtime.fallback import open_artefact
from edgeopt.runtime.selftest import Recorded
from edgeopt.steps._context import Engine
from edgeopt.system.machine.environment import package_versions, read_environment
from edgeopt.system.machine.memory import give_back
from edgeopt.system.text import format_bytes

_HALF = ("fp16", "bf16")


def deploy(
    run: Run, candidates: Sequence[Candidate], best: Candidate, embedded: EmbeddedParts, folder: Path | None = None
) -> tuple[Path, tuple[Note, ...]]:
    """Write the bundle; return its folder, and what the user should know of it.

    Args:
        run: With its workspace.
        candidates: With what was measured, the baseline first.
        best: The choice.
        embedded: What the models are to hold of the recipe.
        folder: Where it goes; None: `bundle` in the output folder.

    Raises:
        InvalidFileError: If the disk is full.
    """
    give_back()  # of what candidates were made of; a large model is opened next
    alike = _fed_alike(run, candidates, best)
    in_float = load_model(run.workspace.path(alike[0].file), alike[0].name)
    fed = run.context.recipe_of(in_float)
    recipe = embedded.recipe or _recipe_of_bundle(run, fed)
    chain = _chain(run, alike, best)
    notes = [*embedded.notes]
    lighter = [
        _part(run, f"lighter-{i}.onnx", candidate)
        for i, candidate in enumerate(judged_lighter(run, alike, best, notes), 1)
    ]
    parts = _with_files_once(run, [*chain, *lighter])
    samples = samples_of_test(run, alike, fed.input.size, notes)
    recorder = Recorder(run, embedded, samples, notes, in_float, parts[0])
    recorded = dict[int, Recorded | None]()
    weights, packed = dict[str, PieceLayout](), dict[int, tuple[Artefact, bytes]]()
    for i, part in enumerate(parts):
        try:
            recorded[i] = recorder.record(part) if samples else None
            packed[i] = _packed(run, part, embedded, recorded[i], weights)
        except UnsupportedError as error:
            if i == 0 or not embedded.steps:
                raise
            notes.append(_left_out(part, embedded, error))
    recipe, sketch = recorder.with_reading(recipe), recorder.sketch()
    models, results = [*packed.values()], [recorded[i] for i in packed]
    count = sum(i < len(chain) for i in packed)
    selftest = selftest_of(samples, results) if any(results) else None
    inside = embedded.measured.expected if embedded.measured else {}
    judgement = embedded.measured.judgement if embedded.measured else best.judgement
    folder = folder or run.workspace.path("bundle")
    names = [one.name for one in in_float.inputs], [one.name for one in in_float.outputs]
    companions, loaded = companions_of(run.configurations, folder, models[0][0].file, recipe, names)
    app = load_executor(chain[0].target.executor).app_files()
    bundle = write_bundle(
        folder,
        models[:count],
        run.context.target,
        recipe,
        {**_expected(run, best), **inside, "proof": judgement.proof if judgement else None},
        package_versions(),
        lighter=models[count:],
        weights=weights,
        selftest=selftest,
        companions={**app, **companions},
        sketch=(SKETCH_FILE, pack_sketch(sketch)) if sketch else None,
    )
    if TENSORRT in run.context.target.providers and not run.untimed:
        open_artefact(bundle, bundle.artefacts[0]).session.close()  # builds its engines: the first start here is quick
    return folder, (*notes, *loaded, _size_of(bundle))


def _left_out(part: BundlePart, embedded: EmbeddedParts, error: UnsupportedError) -> Note:
    """Return why a model is not in the bundle: all its models are fed alike, and its engine cannot be fed so."""
    text = f"{part.name} ({part.candidate.name}) is not in the bundle, whose models are fed alike: {error.problem}"
    return Note(NoteKind.SKIPPED, text, f"--skip {','.join(embedded.steps)} keeps it")


def _with_files_once(run: Run, parts: Sequence[BundlePart]) -> list[BundlePart]:
    """Return the parts with one name for what is one file: an engine may run a model in two arithmetics."""
    names: dict[tuple[str, str], str] = {}
    keys = [(sha256_of(run.workspace.path(part.file)), _own_suffix(part)) for part in parts]
    return [replace(part, name=names.setdefault(key, part.name)) for key, part in zip(keys, parts, strict=True)]


def _fed_alike(run: Run, candidates: Sequence[Candidate], best: Candidate) -> list[Candidate]:
    """Return the candidates that take pictures of one size with the choice: a bundle feeds all its models alike.

    The first is in float: the original, or the one of that size that loses least.
    """
    alike = [candidate for candidate in candidates if candidate.input_size == best.input_size]
    floats = [
        candidate
        for candidate in alike
        if candidate.precision == run.context.engine.target.float_precision and not candidate.profile
    ]
    first = floats[0] if floats else best
    return [first, *(candidate for candidate in alike if candidate is not first)]


def _chain(run: Run, candidates: Sequence[Candidate], best: Candidate) -> list[BundlePart]:
    """Return the choice and what comes after it, in the order in which a device tries them."""
    device = run.context.target if run.by_rule else run.engine_of(best).target
    file = best.compiled or best.file
    first = _part(run, f"model{Path(file).suffix}", best)
    chain = [replace(first, file=file, precision=_precision_on_device(run, best), target=device)]
    if best.compiled and run.engine_of(best).executor.takes_onnx:
        chain.append(replace(chain[0], name="fallback-onnx.onnx", file=best.file))
    own = run.context.engine.target
    dense = _densest(run, candidates)
    floats = [
        candidate
        for candidate in dense
        if candidate.precision == own.float_precision and not candidate.profile and not candidate.refused
    ]
    floats = floats or [candidates[0]]
    is_float = best.precision == own.float_precision and not best.profile and not run.by_rule
    if not is_float:
        halves = [
            candidate
            for candidate in dense
            if candidate.precision in _HALF and candidate not in (best, *floats) and not candidate.refused
        ]
        chain += [_part(run, "fallback-half.onnx", half) for half in halves[-1:] if _is_faster(half, floats[-1])]
        chain.append(_part(run, "fallback.onnx", floats[-1]))
    return [*chain, *_on_processor(run, dense, chain)]


def _densest(run: Run, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that lost least on purpose: what is fallen back to loses nothing more than its size."""
    lossy = [len(run.plan.beside & {*candidate.steps}) for candidate in candidates]
    return [candidate for candidate, count in zip(candidates, lossy, strict=True) if count == min(lossy)]


def _is_faster(candidate: Candidate, other: Candidate) -> bool:
    """Whether one is measured faster than another, or nothing is measured."""
    mine, its = p50_of(candidate), p50_of(other)
    return mine is None or its is None or mine < its


def _on_processor(run: Run, candidates: Sequence[Candidate], chain: Sequence[BundlePart]) -> list[BundlePart]:
    """Return the float model on ONNX Runtime's own kernels, which every device has, unless the chain ends there."""
    last = chain[-1]
    if last.target.executor == "onnxruntime" and last.target.providers == (CPU,):
        return []
    held_back = guard.entries if (guard := active_guard()) else {}
    target = replace(run.context.engine.target, executor="onnxruntime", providers=(CPU,), options=held_back, cores="")
    full = [
        candidate
        for candidate in candidates
        if candidate.precision == "fp32" and not candidate.profile and not candidate.refused
    ]
    other = full[-1] if full else candidates[0]
    same = next((part.name for part in chain if part.file == other.file and not _own_suffix(part)), "fallback-cpu.onnx")
    engine = Engine(target, load_executor("onnxruntime"), run.context.engine.threads)
    return [BundlePart(same, other.file, other, "fp32", target, 0, engine)]


def _part(run: Run, name: str, candidate: Candidate) -> BundlePart:
    """Return a candidate as a part, opened there as it was here: this machine's cores say nothing of another's."""
    asked = run.plan.threads if run.plan.threads_wanted else 0
    engine = run.engine_of(candidate)
    if engine.executor.own_suffix and not candidate.compiled:
        name = str(Path(name).with_suffix(engine.executor.own_suffix))
    return BundlePart(
        name, candidate.file, candidate, candidate.precision, engine.target, asked if run.untimed else engine.threads
    )


def _own_suffix(part: BundlePart) -> str:
    """Return the suffix of the file that a part's engine opens in place of the ONNX model; empty: it opens that."""
    return "" if part.candidate.compiled else load_executor(part.target.executor).own_suffix


def _precision_on_device(run: Run, best: Candidate) -> str:
    """Return the target's own word for a candidate that was checked on this machine's processor."""
    if not run.by_rule:
        return best.precision
    is_integer = best.precision.startswith("w8")
    return next(
        (precision for precision in run.context.target.precisions if precision.startswith("w8") == is_integer),
        best.precision,
    )


def _packed(
    run: Run, part: BundlePart, embedded: EmbeddedParts, recorded: Recorded | None, weights: dict[str, PieceLayout]
) -> tuple[Artefact, bytes]:
    """Return what the manifest says of a model, and the model; `weights` gets the file with its weights, if any."""
    candidate, how = part.candidate, (part.precision, part.target, part.threads)
    if part.file == candidate.compiled:
        data = run.workspace.read(part.file)
        made = make_artefact(part.name, data, *how)
    else:
        model = embedded.put_into(load_model(run.workspace.path(part.file), candidate.name))
        if _own_suffix(part):
            data, beside = load_executor(part.target.executor).own_file(model.source), None
        else:
            data, beside = in_bundle(model, weights)
        made = make_artefact(part.name, data, *how, model.inputs, model.outputs)
        made = replace(made, weights=beside)
    score = candidate.simulated or candidate.score
    frame = candidate.latency.frame if candidate.latency and part.judged_as is None else None
    expected = Expected(
        accuracy=score.value if score else None,
        agreement=candidate.agreement,
        frame_p50_ms=frame.p50_ms if frame else None,
        frame_p99_ms=frame.p99_ms if frame else None,
    )
    if embedded.measured and embedded.name == candidate.name and part.judged_as is None:
        expected = replace(expected, **embedded.measured.expected)
    return replace(made, expected=expected, noise_limits=recorded.limits if recorded else {}), data


def _expected(run: Run, best: Candidate) -> dict[str, object]:
    score = best.simulated or best.score
    return {
        "metric": run.context.recipe.evaluation.metric,
        "accuracy": score.value if score else None,
        "images": score.n if score else 0,
        "agreement": best.agreement,
        "frame_p50_ms": p50_of(best),
        "frame_p99_ms": best.latency.frame.p99_ms if best.latency else None,
        "machine": read_environment().hash if best.latency else None,
        MEASURED_ON: this_machine().to_json() if best.latency else None,
        ORIGINAL: run.context.original.fingerprint,
    }


def _recipe_of_bundle(run: Run, recipe: Recipe) -> Recipe:
    """Return the recipe without a picture's size where arrays were given, and nothing says how one becomes them."""
    if not recipe.takes_arrays or run.context.frames.tensors is None or recipe.preprocess != Preprocess():
        return recipe
    return replace(recipe, input=replace(recipe.input, size=()))


def _size_of(bundle: Bundle) -> Note:
    """Return what each file of a bundle weighs."""
    artefacts = (*bundle.artefacts, *bundle.lighter)
    sizes = {artefact.file: artefact.size_bytes for artefact in artefacts}
    sizes |= {artefact.weights.file: artefact.weights.size_bytes for artefact in artefacts if artefact.weights}
    beside = (bundle.selftest, bundle.sketch)
    sizes |= {kept.file: kept.size_bytes for kept in beside if kept}
    text = ", ".join(f"{name} {format_bytes(size)}" for name, size in sizes.items())
    return Note(NoteKind.INFO, f"the bundle has {format_bytes(sum(sizes.values()))}: {text}")
