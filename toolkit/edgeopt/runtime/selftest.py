"""The numbers of a bundle's models on stored inputs: as they were where it was made, and whether they are so here.

A processor, a driver or a version of an engine may compute something else than what was judged: sums in 16 bits that
saturate, a broken kernel, another arithmetic. A model whose numbers are wrong here is not used.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError, Note, NoteKind, UnavailableError
from edgeopt.executors import Session, arithmetic
from edgeopt.graph.columns import as_rows, column_axis, statistics_of
from edgeopt.graph.sound import Sound
from edgeopt.graph.tensors import Frame, ReducedPicture, Sample
from edgeopt.recipes.inputs.sample_arrays import PICTURE, TEXT, arrays_of, sample_of
from edgeopt.runtime.bundle import Bundle
from edgeopt.runtime.bundles.folder import REMEDY
from edgeopt.runtime.bundles.parts import Artefact, NoiseLimit
from edgeopt.system.disk.archives import read_archive
from edgeopt.tasks import FrameTask

FILE = "selftest.npz"
MOST_SAMPLES = 4
_INPUTS = "inputs"
"""The array of the inputs' names; empty where no tensors are stored."""
_NAMES = {"frame": PICTURE, TEXT: TEXT}
"""Prefix of the name of a stored array that is a whole sample -> the array's name for `sample_of`."""
_MOST_STORED = 2 << 20
"""Bytes of the inputs of one bundle before they are compressed, the first sample apart."""
_MOST_SAMPLE = 16 << 20
"""Bytes of one sample: a model with larger inputs is not tested."""
_MOST_BYTES = 64 << 20
"""Most bytes of what a file unpacks to."""
_MOST_CHECKED = 4096
"""Numbers of one output of one sample."""
_STRIDE = 2_654_435_761
"""A prime: rows so far apart lie all over an output."""
_FEW_ROWS = 16
"""Below, no spread of a single channel is known."""
ROUNDING = {"fp32": 0.004, "fp16": 0.02, "bf16": 0.02}
ROUNDING_INT8, _ROUNDING_ELSEWHERE = 0.02, 0.05
_OF_SENSITIVITY = 0.05
"""Share of the noise that one level in the inputs makes: a model that magnifies that magnifies rounding too."""
_TOO_SENSITIVE = 1.0
"""Noise from which on an output is in another order, or follows chance: it is not judged."""
_WORSE = 4.0
"""Times the noise of the whole that one channel may have: 12 dB, as between two forms of a model (`graph/drift.py`)."""
WRONG = 3.0
"""Times the noise of rounding, from where numbers are wrong; noise between is told."""

Rows = NDArray[Any]
"""(rows, channels): some rows of an output, those of all samples one after the other."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A model's answers to the stored inputs."""

    expected: Mapping[str, Rows]
    """Outputs by name, of all samples one after the other."""
    positions: Sequence[Mapping[str, NDArray[np.int32]]]
    """Which rows, for each sample by output."""
    limits: Mapping[str, NoiseLimit]
    """Limits by output; an output that cannot be judged is absent."""


@dataclass(frozen=True, slots=True)
class StoredTest:
    """The inputs of a bundle's test, and what each of its models made of them."""

    samples: tuple[Sample, ...]
    arrays: Mapping[str, NDArray[Any]]
    """`expected_MODEL_OUTPUT` and `rows_MODEL_SAMPLE_OUTPUT`, all counted from 0."""


def choose_samples(samples: Sequence[Sample], size: Sequence[int]) -> tuple[Sample, ...]:
    """Return what of some samples is stored: a few, pictures no larger than the model's input.

    Args:
        samples: Pictures, texts or inputs by name.
        size: Height and width of the model's input; empty where it takes no picture.
    """
    kept: list[Sample] = []
    stored = 0
    for sample in samples[:MOST_SAMPLES]:
        small = _small(sample, size) if isinstance(sample, np.ndarray) else sample
        arrays = list(arrays_of(small).values())
        needed = sum(array.nbytes for array in arrays)
        if needed > _MOST_SAMPLE or any(array.dtype.kind not in "fiub" for array in arrays):
            return ()
        if kept and stored + needed > _MOST_STORED:
            break
        kept.append(dict(small) if isinstance(small, Mapping) else small)
        stored += needed
    return tuple(kept)


def _small(frame: Frame, size: Sequence[int]) -> Frame:
    """Return a picture scaled so that its longer side is no longer than the input's."""
    factor = max(size) / max(frame.shape[:2])
    if factor >= 1:
        return np.ascontiguousarray(frame)
    width, height = (max(round(side * factor), 1) for side in frame.shape[1::-1])
    import cv2  # which a model of texts does without

    return np.asarray(cv2.resize(frame, (width, height), interpolation=cv2.INTER_AREA), np.uint8)


def record(
    session: Session,
    task: FrameTask,
    samples: Sequence[Sample],
    precision: str,
    *,
    original: Sequence[Mapping[str, Rows]] = (),
    elsewhere: bool = False,
    unfused: bool = False,
) -> Recorded:
    """Run a model on samples, and find out how far its numbers may be off on another device.

    What rounding may do is known by its arithmetic, and grows with what the model makes of inputs that are moved by one
    level. Wrong are numbers that lie further from these than the float model's: its accuracy here proves nothing there.

    Args:
        session: The model as it was judged.
        task: Bound to it.
        samples: From `choose_samples`.
        precision: Its scheme, for example `w8a8+bf16`.
        original: What the float model makes of the samples, from `run_rows`; empty: nothing is known of it.
        elsewhere: Whether the device computes with another engine than this session, or its simulator.
        unfused: Whether the device fuses integers that this session computes in float: values near a half then round
            the other way, which is told from a larger limit on, and is wrong from the same one.

    Raises:
        EdgeoptError: If the engine fails.
    """
    outputs = run_rows(session, task, samples)
    positions = [{name: _telling(rows) for name, rows in each.items()} for each in outputs]
    expected, meant = _joined(_chosen(outputs, positions)), _joined(_chosen(original or outputs, positions))
    moved = _joined(run_rows(session, task, [_moved(sample) for sample in samples], positions))
    least = ROUNDING_INT8 if precision.startswith("w") else ROUNDING[arithmetic(precision)]
    if session.simulated or elsewhere:
        least = max(least, _ROUNDING_ELSEWHERE)
    limits, tables = {}, _tables_of(session)
    for name, here in expected.items():
        is_table = name in tables
        sensitivity = noise(moved[name], here, is_table=is_table)
        if sensitivity < _TOO_SENSITIVE:
            rounding = max(least, _OF_SENSITIVITY * sensitivity)
            wrong = min(max(WRONG * rounding, noise(meant[name], here, is_table=is_table)), _TOO_SENSITIVE)
            noticed = max(rounding, _ROUNDING_ELSEWHERE) if unfused else rounding
            limits[name] = NoiseLimit(round(noticed, 5), round(wrong, 5))
    return Recorded(expected, positions, limits)


def pack(samples: Sequence[Sample], recorded: Sequence[Recorded | None]) -> bytes:
    """Return the file of a test: a compressed .npz of plain arrays.

    Args:
        samples: That were run.
        recorded: Of each model in the order of the bundle, the lighter ones last; None where it was not run.
    """
    names = [*samples[0]] if isinstance(samples[0], Mapping) else []
    arrays: dict[str, NDArray[Any]] = {_INPUTS: np.array(names, np.str_)}
    for i, sample in enumerate(samples):
        if isinstance(sample, Mapping):
            arrays |= {f"input_{i}_{j}": np.asarray(sample[name]) for j, name in enumerate(names)}
            continue
        for begin, name in _NAMES.items():
            arrays |= {f"{begin}_{i}": array for key, array in arrays_of(sample).items() if key == name}
    for i, other in enumerate(recorded):
        if other is not None:
            arrays |= {f"expected_{i}_{j}": array for j, array in enumerate(other.expected.values())}
            for k, each in enumerate(other.positions):
                arrays |= {f"rows_{i}_{k}_{j}": rows for j, rows in enumerate(each.values())}
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    return file.getvalue()


def read_stored(bundle: Bundle) -> StoredTest | None:
    """Return the test of a bundle, whose files were checked against their hashes; None where it has none.

    Raises:
        InvalidFileError: If it is no archive of such arrays, or unpacks to more than 64 MiB.
    """
    if bundle.selftest is None:
        return None
    path = bundle.folder / bundle.selftest.file
    arrays = read_archive(path, remedy=REMEDY, most_bytes=_MOST_BYTES)
    try:
        names = arrays[_INPUTS].astype(np.str_).reshape(-1).tolist()
        samples = [_sample(arrays, names, i) for i in range(bundle.selftest.samples)]
    except KeyError as error:
        raise InvalidFileError(f"{path} lacks the array {error.args[0]}", remedy=REMEDY) from error
    except ValueError as error:
        raise InvalidFileError(f"{path}: {error}", remedy=REMEDY) from error
    return StoredTest(tuple(samples), arrays)


def _sample(arrays: Mapping[str, NDArray[Any]], names: Sequence[str], place: int) -> Sample:
    if names:
        return {name: arrays[f"input_{place}_{j}"] for j, name in enumerate(names)}
    for begin, name in _NAMES.items():
        if (stored := arrays.get(f"{begin}_{place}")) is not None:
            return sample_of(name, stored, f"{begin}_{place}")
    raise KeyError(f"frame_{place}")


def check(
    stored: StoredTest, bundle: Bundle, artefact: Artefact, session: Session, task: FrameTask
) -> tuple[Note, ...]:
    """Run a model on the stored inputs and compare its numbers; return what the user should know of them.

    Raises:
        UnavailableError: If they are wrong on this device.
        EdgeoptError: If it does not run.
    """
    place, none = (*bundle.artefacts, *bundle.lighter).index(artefact), np.empty(0, np.int32)
    positions = [
        {output.name: stored.arrays.get(f"rows_{place}_{k}_{i}", none) for i, output in enumerate(session.outputs)}
        for k in range(len(stored.samples))
    ]
    wanted_of = {output.name: stored.arrays.get(f"expected_{place}_{i}") for i, output in enumerate(session.outputs)}
    columns = {name: array.shape[1] for name, array in wanted_of.items() if array is not None and array.ndim == 2}
    try:
        arrays = _joined(run_rows(session, task, stored.samples, positions, columns))
    except (ValueError, KeyError) as error:
        raise InvalidFileError(f"{FILE} does not fit {artefact.file}: {error}", remedy=REMEDY) from error
    notes, tables = [], _tables_of(session)
    for spec in session.outputs:
        limit, wanted = artefact.noise_limits.get(spec.name), wanted_of[spec.name]
        if limit is None or wanted is None:
            continue
        off = noise(arrays[spec.name], wanted, is_table=spec.name in tables)
        text = f"output {spec.name} is {_off(off)} ({100 * limit.rounding:.2g} % is rounding)"
        if not off <= limit.wrong:
            raise UnavailableError(f"its numbers are wrong on this device: {text}", remedy=OPTIMIZE_HERE)
        if off > limit.rounding:
            notes.append(Note(NoteKind.WARNING, f"{artefact.file}: {text}", f"accuracy may differ: {OPTIMIZE_HERE}"))
    return tuple(notes)


OPTIMIZE_HERE = "run edgeopt optimize for this device"


def _off(share: float) -> str:
    return f"{100 * share:.2g} % off what was measured" if np.isfinite(share) else "NaN, infinite or of another shape"


def run_rows(
    session: Session,
    task: FrameTask,
    samples: Sequence[Sample],
    positions: Sequence[Mapping[str, NDArray[np.int32]]] = (),
    columns: Mapping[str, int] | None = None,
) -> list[dict[str, Rows]]:
    """Run a model; return for each sample the numbers of each output as (rows, channels).

    Args:
        session: The model.
        task: Bound to it.
        samples: One or more.
        positions: Which rows, for each sample by output; empty: all.
        columns: How many channels of each output were stored; None: nothing is stored yet.

    Raises:
        EdgeoptError: If the engine fails.
    """
    result = []
    for i, sample in enumerate(samples):
        outputs = session.run(task.preprocess(sample)[0])
        rows = {
            output.name: _rows_of(np.asarray(outputs[output.name]), (columns or {}).get(output.name, 0))
            for output in session.outputs
        }
        kept = {name: _at(row, positions[i][name]) if positions else row.copy() for name, row in rows.items()}
        result.append(kept)  # the next run may write over the outputs themselves
    return result


def _tables_of(session: Session) -> set[str]:
    """Return the outputs whose columns may be of different units: rows of numbers, no maps and no vectors."""
    return {output.name for output in session.outputs if len([size for size in output.shape[1:] if size != 1]) == 2}


def _chosen(
    outputs: Sequence[Mapping[str, Rows]], positions: Sequence[Mapping[str, NDArray[np.int32]]]
) -> list[dict[str, Rows]]:
    return [
        {name: _at(output[name], each[name]) for name in each} for output, each in zip(outputs, positions, strict=True)
    ]


def _rows_of(output: NDArray[Any], columns: int = 0) -> Rows:
    """Return (rows, channels) of an output; channels stay together: boxes and scores have scales of their own.

    Args:
        output: Of one sample.
        columns: How many channels were stored of it, where older versions took another axis for them; 0: not stored.
    """
    if output.dtype.kind not in "fiub":
        output = np.zeros((1, 1), np.float32) if output.dtype.kind in "OSUV" else output.astype(np.float32)
    if output.ndim < 2 or not output.size:
        return output.reshape(1, -1)[:, :_MOST_CHECKED]
    axes = [column_axis(output.shape), output.ndim - 1, 1]
    fitting = [axis for axis in axes if axis is not None and min(output.shape[axis], _MOST_CHECKED) == columns]
    return as_rows(output, fitting[0] if columns and fitting else axes[0])[:, :_MOST_CHECKED]


def _telling(rows: Rows) -> NDArray[np.int32]:
    """Return which rows of one output are compared: half those that stand out most, half from all over it."""
    most = max(_MOST_CHECKED // max(rows.shape[1], 1), 1)
    if len(rows) <= most:
        return np.arange(len(rows), dtype=np.int32)
    finite = np.nan_to_num(rows.astype(np.float64), posinf=0, neginf=0)
    standing_out = np.abs((finite - finite.mean(axis=0)) / (finite.std(axis=0) + 1e-12)).sum(axis=1)
    chosen = [
        *np.argsort(-standing_out, kind="stable")[: most // 2],
        *(np.arange(most - most // 2) * _STRIDE % len(rows)),
    ]
    return np.unique(chosen).astype(np.int32)


def _at(rows: Rows, places: NDArray[np.int32]) -> Rows:
    """Return a copy of chosen rows; none where the output has other rows than when they were chosen."""
    if places.dtype != np.int32 or places.ndim != 1:
        return np.empty((0, 0))
    fits = not len(places) or 0 <= places.min() <= places.max() < len(rows)
    return rows[places] if fits else np.empty((0, 0))


def _joined(samples: Sequence[Mapping[str, Rows]]) -> dict[str, Rows]:
    """Return by output the rows of all samples; none where their channels are not as many in each."""
    arrays = {}
    for name in samples[0]:
        parts = [sample[name] for sample in samples]
        alike = len({part.shape[1] for part in parts}) == 1
        arrays[name] = np.concatenate(parts) if alike else np.empty((0, 0))
    return arrays


def noise(array: NDArray[Any], expected: NDArray[Any], *, is_table: bool = True) -> float:
    """Return how far numbers are from those expected, relative to how these differ among themselves.

    0: equal; 1.4: nothing in common; infinite: another shape, or NaN where a number was. Each channel counts alike,
    whatever its unit, and the worst one by itself: among a thousand a channel that is lost makes 3 % of noise. Whole
    numbers count by the share that differ.

    Args:
        array: (rows, channels).
        expected: (rows, channels); a channel that is constant there is compared with its value.
        is_table: Whether channels may be of different units; else weak ones are compared with the others.
    """
    if array.shape != expected.shape or array.dtype.kind != expected.dtype.kind:
        return np.inf
    if expected.dtype.kind != "f":
        return float(np.mean(array != expected)) if expected.size else 0.0
    there = np.isfinite(expected)
    if not np.array_equal(there, np.isfinite(array)):
        return np.inf
    if not expected.size:
        return 0.0
    wanted = np.where(there, expected, 0).astype(np.float64)
    error = np.where(there, array, 0).astype(np.float64) - wanted
    compared = wanted.reshape(-1, 1) if len(wanted) < _FEW_ROWS else wanted
    error = error.reshape(compared.shape)
    errors = (error**2).mean(axis=0)
    if not errors.any():
        return 0.0
    largest = float(np.abs(wanted).max(initial=0.0)) or 1.0  # squares of large numbers would overflow
    scales = statistics_of([compared / largest]).scales(is_table=is_table)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        shares = np.where(errors > 0, errors / largest**2 / scales, 0.0)
    worst = shares.max() if compared is wanted else 0.0
    return float(max(np.sqrt(np.mean(shares)), np.sqrt(worst) / _WORSE))


def noises(session: Session, task: FrameTask, samples: Sequence[Sample], recorded: Recorded) -> dict[str, float]:
    """Run a model, and return by output how far its numbers are from another session's; what has no limit is left out.

    Raises:
        EdgeoptError: If the engine fails.
    """
    arrays, tables = _joined(run_rows(session, task, samples, recorded.positions)), _tables_of(session)
    return {name: noise(arrays[name], recorded.expected[name], is_table=name in tables) for name in recorded.limits}


def _moved(sample: Sample) -> Sample:
    """Return a sample with its numbers moved by one level of 8 bits, up and down; whole numbers and texts stay."""
    if isinstance(sample, str | Sound | ReducedPicture):  # of a sound the inputs are stored, of a picture its pixels
        return sample
    if not isinstance(sample, Mapping):
        return np.asarray(np.clip(sample.astype(np.int16) + _signs(sample.shape), 0, 255), np.uint8)
    return {name: _moved_array(value) for name, value in sample.items()}


def _moved_array(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind != "f" or not array.size:
        return array
    level = float(array.max() - array.min()) / 255
    return np.asarray(array + level * _signs(array.shape), array.dtype)  # a sum of numbers alone is no array


def _signs(shape: Sequence[int]) -> NDArray[np.int16]:
    """Return -1, 0 and 1 without a pattern, the same everywhere."""
    count = int(np.prod(shape))
    mixed = (np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(33)
    return (mixed % np.uint64(3)).astype(np.int16).reshape(shape) - np.int16(1)
