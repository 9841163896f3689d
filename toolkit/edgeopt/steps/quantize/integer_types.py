"""Which integers this processor multiplies fastest: a second of measuring, kept per machine.

One convolution of a usual size runs as float32, with uint8 activations (U8S8) and with int8 activations (S8S8) in
turns. Profiles say which is faster from the processor's instructions; this confirms it on the engine that is here.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import thread_time_ns

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from edgeopt.errors import InvalidFileError, Note, NoteKind
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import Model
from edgeopt.measurement.turns.calls import call_of, compare_calls
from edgeopt.steps.quantize.api import quantize
from edgeopt.system.declared.target import Int8Rules, Target
from edgeopt.system.disk.caches import cache_folder
from edgeopt.system.disk.files import write_beside
from edgeopt.system.machine.environment import processor_hash

_WORDS = {"uint8": "U8S8", "int8": "S8S8"}
_SECONDS, _CHANNELS, _SIZE, _BLOCK = 0.8, 64, 32, 4
_MARGIN = 0.10
"""A type must be faster by so much before it takes the place of the one that the profile names."""


@dataclass(frozen=True, slots=True)
class TypeSpeeds:
    """Time of a float32 convolution over that of the same one on integers."""

    uint8: float
    int8: float

    def of(self, activation_dtype: str) -> float:
        """Return the speed with these activations."""
        return self.uint8 if activation_dtype == "uint8" else self.int8

    def __str__(self) -> str:
        return f"U8S8 {self.uint8:.2f}x, S8S8 {self.int8:.2f}x the speed of float32 in one convolution"


def confirmed_rules(target: Target, speeds: Callable[[], TypeSpeeds] | None = None) -> tuple[Int8Rules, list[Note]]:
    """Return a target's rules with the activation type that is faster here, and what was found.

    Only the choice between uint8 and int8 follows the measurement, and only for ONNX Runtime on this machine's own
    processor; other rules are returned as they are.

    Args:
        target: Whose rules are confirmed.
        speeds: What measures; None: `type_speeds`.
    """
    rules, notes = target.rules_here, list[Note]()
    if target.saturates_here:
        detail = f"this processor cannot add up 8-bit weights of {target.name}: two products saturate 16 bits here"
        notes.append(Note(NoteKind.WARNING, detail, "pass --target cpu for a model that runs here"))
    mine = (target.executor, target.device) == ("onnxruntime", "cpu") and target.why_not_here() is None
    if not mine or rules.activation_dtype not in _WORDS or rules.weight_dtype != "int8":
        return rules, notes
    found = (speeds or type_speeds)()
    other = "int8" if rules.activation_dtype == "uint8" else "uint8"
    if found.of(other) > found.of(rules.activation_dtype) * (1 + _MARGIN):
        detail = f"{_WORDS[other]} instead of the profile's {_WORDS[rules.activation_dtype]}: {found}"
        notes.append(Note(NoteKind.CHOICE, detail, "measured on this machine"))
        rules = replace(rules, activation_dtype=other)
    if max(found.uint8, found.int8) <= 1:
        notes.append(Note(NoteKind.WARNING, f"integers are not faster than float32 here: {found}"))
    return rules, notes


def type_speeds(folder: Path | None = None) -> TypeSpeeds:
    """Return this machine's speeds: from the cache, or measured in about a second.

    Args:
        folder: Of the cache; None: the user's own. Where it cannot be written nothing is kept.
    """
    file = (folder or cache_folder()) / f"data-types-{processor_hash()}.json"
    with contextlib.suppress(OSError, ValueError, TypeError):
        return TypeSpeeds(**json.loads(file.read_text("utf-8")))
    result = _measure()
    with contextlib.suppress(InvalidFileError):
        write_beside(file, json.dumps(asdict(result)) + "\n")
    return result


def _measure() -> TypeSpeeds:
    real = _convolution()
    chance = np.random.default_rng(0)
    frames = [{"x": chance.normal(0, 1, (1, _CHANNELS, _SIZE, _SIZE)).astype(np.float32)} for _ in range(2)]
    models = {"fp32": real} | {
        name: quantize(real, iter(frames), Int8Rules(activation_dtype=name), least_db=-120.0).model for name in _WORDS
    }
    sessions = {name: EXECUTOR.open(model.source, SessionOptions()) for name, model in models.items()}
    runs = {name: call_of(session, frames[0]) for name, session in sessions.items()}
    ratios = compare_calls(runs, baseline="fp32", seconds=_SECONDS, block=_BLOCK, clock=thread_time_ns)
    for session in sessions.values():
        session.close()
    return TypeSpeeds(ratios["uint8"].speedup, ratios["int8"].speedup)


def _convolution() -> Model:
    """Return three convolutions in a row, so that what numbers cost at both ends is shared."""
    chance, shape = np.random.default_rng(1), [1, _CHANNELS, _SIZE, _SIZE]
    weights = chance.normal(0, (9 * _CHANNELS) ** -0.5, (3, _CHANNELS, _CHANNELS, 3, 3)).astype(np.float32)
    names = ["x", "a", "b", "y"]
    nodes = [
        helper.make_node("Conv", [names[i], f"w{i}"], [names[i + 1]], name=f"c{i}", kernel_shape=[3, 3], pads=[1] * 4)
        for i in range(3)
    ]
    graph = helper.make_graph(
        nodes,
        "convolution",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(weight, f"w{i}") for i, weight in enumerate(weights)],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return Model(made, "convolution")
