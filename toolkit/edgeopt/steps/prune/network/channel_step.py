"""The channel step of an engine here: counts between two of its multiples save no time.

Vector units compute channels in blocks; 49 channels take as long as 64 where a block has 16. The step is found by
sweeping a 3x3 and a 1x1 convolution from 64 channels down, in and out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from edgeopt.errors import Note, NoteKind
from edgeopt.steps._context import Engine
from edgeopt.steps._device_times.prediction import Predictor
from edgeopt.steps.prune.latency_table import Stopwatch, can_time, stopwatch_of
from edgeopt.steps.prune.network.layer_shapes import LayerShape, TimedLayer
from edgeopt.system.declared.target import Target

USUAL_STEP = 16
"""Where neither this machine nor a profile tells one: 512 bits of float32."""
_WAYS = 2
"""Channels in, channels out."""
_SWEPT = 64
_FINEST = 4
_STEPS = (32, 16, 8)
_SIZE = 26
_FLAT, _SLOPED = 0.15, 0.3
"""Share of a block's saving that is had within the block: none on a staircase, half on a slope."""
_OFF, _MOST_OFF = 0.2, 3
"""A time that lies further from its step, as a share, is off; more than so many of sixteen, and there is no step."""
_LEAST_SAVING = 0.3
"""Least saving of the time, from 64 channels to 16: what saves less tells nothing of steps."""


@dataclass(frozen=True, slots=True)
class ChannelStep:
    """How many channels belong together, and who says so."""

    channels: int
    note: Note


def channel_step(engine: Engine, precision: str, *, is_here: bool = True) -> ChannelStep:
    """Return the step in which channels save time on an engine.

    Args:
        engine: Of the target.
        precision: In which the model will run.
        is_here: Whether the target is this machine; if not, its profile tells.
    """
    if not is_here or not can_time(engine):
        return told_step(engine.target)
    key = engine.target.executor, engine.target.name, precision, engine.threads
    if key not in _PROBED:
        _PROBED[key] = found_step(stopwatch_of(engine, precision), engine.target)
    return _PROBED[key]


_PROBED: dict[tuple[str, str, str, int], ChannelStep] = {}
"""Multiples that were probed in this process: a machine's step does not change within a run."""


def told_step(target: Target, why: str = "it is not here to be measured") -> ChannelStep:
    """Return the step of a target's profile, or the usual one where it tells none."""
    if target.channel_step:
        said = f"channels are kept in multiples of {target.channel_step}, as the profile of {target.name} says"
        return ChannelStep(target.channel_step, Note(NoteKind.INFO, said, why))
    said = f"channels are kept in multiples of {USUAL_STEP}: {target.name} names no step"
    return ChannelStep(USUAL_STEP, Note(NoteKind.INFO, said, why))


def found_step(stopwatch: Stopwatch, target: Target) -> ChannelStep:
    """Return the step that a sweep shows; where the times show none clearly, the profile's.

    Args:
        stopwatch: Times the swept convolutions.
        target: Whose profile stands in.
    """
    sweeps = [_sweep(kernel, varies_in) for kernel in (3, 1) for varies_in in (True, False)]
    times = np.array(stopwatch([shape for sweep in sweeps for shape in sweep])).reshape(len(sweeps), -1)
    step = step_of(times)
    if step is None:
        return told_step(target, "measured here, but no step stands out from the noise")
    said = f"channels are kept in multiples of {step}: counts between save no time here"
    return ChannelStep(step, Note(NoteKind.INFO, said, f"measured on {target.name}"))


def swept_counts() -> range:
    """Return the numbers of channels of a sweep, the most first."""
    return range(_SWEPT, _FINEST - 1, -_FINEST)


def step_of(times: NDArray[np.float64]) -> int | None:
    """Return the step of sweeps, or None where they show none clearly.

    A step is the largest of 32, 16, 8 within whose blocks no channel saves time; where time falls evenly, it is the
    finest that was measured, 4. Of two kernels the finer step holds, since it saves time in one of them; of channels in
    and out the coarser, since a count is both. Where noise hides one of these, there is none.

    Args:
        times: (sweeps, counts) of `swept_counts`; sweeps take turns between channels in and out.
    """
    counts = list(swept_counts())
    if not (np.isfinite(times).all() and (times > 0).all()):
        return None
    if float(np.median(times[:, counts.index(16)] / times[:, 0])) > 1 - _LEAST_SAVING:
        return None
    found = [_step_of_sweep(row) for row in times]
    finest = [min((one for one in found[way::_WAYS] if one), default=0) for way in range(_WAYS)]
    return max(finest) if all(finest) else None


def _step_of_sweep(times: NDArray[np.float64]) -> int | None:
    """Return the step of one sweep, if all but a few of its times fit it."""
    calm = np.minimum.accumulate(times)  # fewer channels never need more time: what shows more is noise
    at = dict(zip(swept_counts(), calm.tolist(), strict=True))
    within = {step: _within_blocks(at, step) for step in _STEPS}
    step = next((step for step in _STEPS if within[step] < _FLAT), _FINEST if within[_STEPS[-1]] > _SLOPED else 0)
    if not step:
        return None
    counts = np.array([*swept_counts()])
    if step == _FINEST:
        expected = np.polynomial.Polynomial.fit(counts, times, 1)(counts)
    else:
        blocks = -(-counts // step)
        expected = np.array([np.median(times[blocks == block]) for block in blocks])
    return step if int((np.abs(times - expected) > _OFF * expected).sum()) <= _MOST_OFF else None


def _within_blocks(at: Mapping[int, float], step: int) -> float:
    """Return which share of what whole blocks save is saved before their ends, on average over all blocks."""
    early = whole = 0.0
    for top in range(_SWEPT, step, -step):
        inner = range(top - _FINEST, top - step, -_FINEST)
        early += sum(at[top] - at[count] for count in inner) / len(inner)
        whole += at[top] - at[top - step]
    return early / whole if whole > 0 else 1.0


def _sweep(kernel: int, varies_in: bool) -> list[LayerShape]:
    return [
        convolution(kernel, count if varies_in else _SWEPT, _SWEPT if varies_in else count) for count in swept_counts()
    ]


def convolution(kernel: int, read: int, made: int, size: int = _SIZE) -> LayerShape:
    """Return a convolution with Relu, so many channels in and out."""
    chance = np.random.default_rng(0)
    weight = chance.normal(0, (read * kernel**2) ** -0.5, (made, read, kernel, kernel)).astype(np.float32)
    conv = helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[kernel] * 2, pads=[kernel // 2] * 4)
    layer = TimedLayer((conv, helper.make_node("Relu", ["c"], ["y"])), ("x",), ("w",), ("y",))
    sizes = {"x": (1, read, size, size), "c": (1, made, size, size), "y": (1, made, size, size), "w": weight.shape}
    return LayerShape(f"Conv {kernel}x{kernel} {read} to {made} at {size}x{size}", layer, sizes, {"w": weight})


def predicted_step(predictor: Predictor, target: Target) -> ChannelStep:
    """Return the channel step that was measured on the device of a target, which is not here."""
    step = predictor.channel_step
    said = f"channels are kept in multiples of {step}: counts between save no time on {target.machine}"
    return ChannelStep(step, Note(NoteKind.INFO, said, "as its times say"))
