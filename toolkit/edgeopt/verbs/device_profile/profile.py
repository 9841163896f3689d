"""A device's times measured: layers of many networks, and how far a prediction from them is off."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median

from edgeopt.errors import EdgeoptError, Note, NoteKind, UnavailableError, UnsupportedError
from edgeopt.executors._guard import guarded
from edgeopt.graph.model import Model, find_model, load_model
from edgeopt.optimization.candidates.engines import open_engine
from edgeopt.recipes.inputs.input_shapes import Shapes
from edgeopt.runtime.devices.availability import find_device, why_unavailable
from edgeopt.steps._context import Engine
from edgeopt.steps._device_times.features import LayerFeatures
from edgeopt.steps._device_times.prediction import LEAST_CHECKS, Predictor, form_layers_ms
from edgeopt.steps.fuse import fuse
from edgeopt.steps.prune.latency_table import can_time
from edgeopt.steps.prune.network.channel_step import channel_step
from edgeopt.steps.simplify import simplify
from edgeopt.system.declared.device_times import (
    TIMES_SUFFIX,
    CheckedNetwork,
    DeviceTimes,
    EngineTimes,
    PrecisionTimes,
    write_device_times,
)
from edgeopt.system.declared.target import Target, find_target
from edgeopt.system.disk.files import require_writable
from edgeopt.system.machine.environment import package_versions, read_environment
from edgeopt.system.machine.processor import cpu_flags, cpu_name
from edgeopt.system.machine.threads import engine_threads
from edgeopt.system.text import plural
from edgeopt.verbs.device_profile.material import ProfileMaterial
from edgeopt.verbs.device_profile.measure import (
    INTEGERS,
    ProfiledNetwork,
    profile_network,
    profiling_ms,
    with_plain_names,
)
from edgeopt.verbs.device_profile.networks import CHECKED, LEARNED
from edgeopt.verbs.device_profile.result import DeviceProfile, TableRow

Tell = Callable[[str, int, int], None]
_UNSURE = 1.6
"""Times that a prediction may be off, from which a table is hardly of use: a device that is at rest has 1.2 to 1.3."""
_SIGNIFICANT = 5
"""Digits that are kept of a number."""


@guarded()
def profile_device(
    models: Sequence[str | Path] = (),
    *,
    target: str = "cpu",
    threads: int = 0,
    shapes: Shapes | None = None,
    out: Path | None = None,
    only_models: bool = False,
    tell: Tell = lambda what, done, of: None,
) -> DeviceProfile:
    """Measure how long layers take on this device, and write a file that stands for it elsewhere.

    Args:
        models: Models of the user's whose layers are measured too, in several widths: predictions of them are nearest.
        target: The device's profile.
        threads: Of the engines; 0: the fast cores.
        shapes: Whole shapes of inputs by name, for what the models leave free.
        out: File to write; None: `out/TARGET.times.json`. It holds each precision as soon as it is measured.
        only_models: Whether the models' layers are all that is measured: quick, and for such models alone.
        tell: Hears how far it is.

    Raises:
        EdgeoptError: If a model cannot be opened, no engine tells times of layers, or the file cannot be written.
    """
    device = find_device(target)
    if reason := device.why_not_here():
        raise UnavailableError(
            f"{device.name} cannot be measured here: {reason}", remedy="run it there: --on ssh://..."
        )
    file = out or Path("out") / f"{device.name}{TIMES_SUFFIX}"
    if not file.name.endswith(TIMES_SUFFIX):
        raise EdgeoptError(f"--out {file} is no name of a table of times", remedy=f"let it end in {TIMES_SUFFIX}")
    require_writable(file)
    count = engine_threads(threads or device.threads)
    mine = [_opened(name, shapes or {}) for name in models]
    material = ProfileMaterial(() if only_models else LEARNED, () if only_models else CHECKED, mine)
    material.require_checks()
    engines, notes = _engines(device, count)
    work = [(engine, precision) for engine in engines for precision in _precisions(engine.target)]
    steps = material.count
    measured: dict[str, dict[str, PrecisionTimes]] = defaultdict(dict)
    made_at = datetime.now(UTC).isoformat(timespec="seconds")
    for place, (engine, precision) in enumerate(work):
        what = f"{engine.target.executor} {precision}"
        heard = partial(_tell_of, tell, what, place * steps, len(work) * steps)
        known = measured[engine.target.name]
        of_float = known.get(engine.target.float_precision)
        floats = Predictor(of_float) if of_float else None
        known[precision], left_out = _measure(engine, precision, material, floats, heard)
        notes += left_out
        result = DeviceTimes(
            device=cpu_name(),
            architecture=device.processor.architecture,
            flags=tuple(sorted(cpu_flags())),
            threads=count,
            made_at=made_at,
            edgeopt=version("edgeopt"),
            networks=tuple(model.name for model in mine),
            engines=tuple(_engine_times(each, measured[each.target.name]) for each in engines[: len(measured)]),
        )
        write_device_times(result, file)  # each precision as soon as it is known: an interrupt leaves the others
    done = DeviceProfile(result, file, (), environment=read_environment())
    notes += [_unsure(row) for row in done.rows if row.most_off > _UNSURE]
    notes += [_hardly_checked(row) for row in done.rows if row.networks < LEAST_CHECKS]
    return replace(done, notes=tuple(dict.fromkeys(notes)))


def _unsure(row: TableRow) -> Note:
    text = f"{row.engine} {row.precision}: predictions are off by up to {row.most_off:.1f} times"
    return Note(NoteKind.WARNING, text, "measure again while the device does nothing else")


def _hardly_checked(row: TableRow) -> Note:
    text = f"{row.engine} {row.precision}: {plural(row.networks, 'network')} checked it; 95 % needs {LEAST_CHECKS}"
    return Note(NoteKind.WARNING, text, "the networks that did not run are told above")


def _engine_times(engine: Engine, precisions: dict[str, PrecisionTimes]) -> EngineTimes:
    executor = engine.target.executor
    known = package_versions()
    package = next((name for name in (engine.target.package, executor) if name in known), "")
    return EngineTimes(engine.target.name, f"{executor} {known.get(package, '')}".strip(), precisions)


def _opened(name: str | Path, shapes: Shapes) -> Model:
    """Return a model of the user's as `optimize` measures it: its shapes fixed, and fused."""
    model = load_model(find_model(str(name)))
    return with_plain_names(fuse(simplify(model, shapes).model).model)


def _engines(device: Target, threads: int) -> tuple[list[Engine], list[Note]]:
    """Return the engines of a device that tell the times of nodes, and notes of the others."""
    own = open_engine(device, threads)
    if not can_time(own):
        problem = f"{device.name}: {device.executor} tells no times of layers on this device"
        raise UnsupportedError(problem, remedy="choose the processor: --target cpu")
    engines, notes = [own], list[Note]()
    for name in device.alternatives:
        other = find_target(name)
        if other.why_unfit() or why_unavailable(other):
            continue
        engine = open_engine(other, threads)
        if can_time(engine):
            engines.append(engine)
        else:
            notes.append(Note(NoteKind.SKIPPED, f"{name}: {other.executor} tells no times of layers"))
    return engines, notes


def _precisions(target: Target) -> list[str]:
    """Return the float precision of a target, and the first of its INT8 schemes that runs here."""
    integers = [name for name in target.precisions if name.startswith(INTEGERS) and not target.why_no_precision(name)]
    return [target.float_precision, *integers[:1]]


def _measure(
    engine: Engine, precision: str, material: ProfileMaterial, floats: Predictor | None, heard: Callable[[int], None]
) -> tuple[PrecisionTimes, list[Note]]:
    """Return the times of layers on one engine, and notes of networks that it does not run."""
    step, networks, notes = channel_step(engine, precision).channels, list[ProfiledNetwork](), list[Note]()
    for done, model in enumerate(material.models(step)):
        heard(done)
        with _noted(model.name, precision, notes):
            networks.append(profile_network(model, engine, precision))
    if not networks:
        raise UnsupportedError(f"{engine.target.name} runs no network in {precision}", remedy="edgeopt doctor says why")
    cost_ms, rows = profiling_ms(networks), defaultdict[LayerFeatures, list[float]](list)
    for network in networks:
        for features, took_ms in network.scaled(cost_ms):
            rows[features].append(took_ms)
    times = PrecisionTimes(step, _layers(rows), (), ())
    predictor, checks, thinned = Predictor(times), list[CheckedNetwork](), list[CheckedNetwork]()
    for done, check in enumerate(material.checks(step), start=len(networks)):
        heard(done)
        with _noted(check.name, precision, notes):
            known = profile_network(check.whole, engine, precision)
            thinner = profile_network(check.thinned, engine, precision) if check.thinned else None
            checks.append(_checked(predictor, floats, check.name, known))
            thinned += [_checked(predictor, floats, check.name, thinner)] if thinner else []
    return PrecisionTimes(step, times.layers, tuple(checks), tuple(thinned)), notes


@contextmanager
def _noted(name: str, precision: str, notes: list[Note]) -> Iterator[None]:
    """Leave out a network that an engine does not run, and say why."""
    try:
        yield
    except EdgeoptError as error:
        notes.append(Note(NoteKind.SKIPPED, f"{name} in {precision}: {error.problem}"))


def _checked(predictor: Predictor, floats: Predictor | None, name: str, network: ProfiledNetwork) -> CheckedNetwork:
    form = network.form
    if form is None:
        times = [predictor.ms(layer.features) for layer in network.layers]
    else:
        times = form_layers_ms(form, predictor, floats)
    predicted = predictor.model_time(times)
    return CheckedNetwork(name, _rounded(predicted.ms), _rounded(network.whole_ms))


def _layers(times_ms: Mapping[LayerFeatures, Sequence[float]]) -> dict[str, tuple[tuple[float, ...], ...]]:
    """Return the rows of each kind of layer; a layer of several networks has the median of its times."""
    rows = defaultdict[str, list[tuple[float, ...]]](list)
    for features, took_ms in sorted(times_ms.items(), key=lambda entry: (entry[0].pool, entry[0].kind, entry[0].sizes)):
        row = (*features.sizes, features.work, median(took_ms))
        rows[f"{features.pool}: {features.kind}"].append(tuple(map(_rounded, row)))
    return {kind: tuple(each) for kind, each in rows.items()}


def _tell_of(tell: Tell, what: str, before: int, of: int, done: int) -> None:
    tell(what, before + done, of)


def _rounded(number: float) -> float:
    return float(f"{number:.{_SIGNIFICANT}g}")
