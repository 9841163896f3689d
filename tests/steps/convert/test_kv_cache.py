"""A decoder's cache in 8 bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from first_outputs import signal_db

from edgeopt.errors import EdgeoptError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.decoder import Decoder, cache_parts
from edgeopt.graph.model import Model, load_model
from edgeopt.steps.convert.kv_cache import cache_ranges, make_integer_cache
from edgeopt.steps.convert.text_inputs import feeds_of

TINY = Path(__file__).parents[3] / "models" / "tiny_lm" / "model.onnx"
TOKENS = np.random.default_rng(0).integers(1, 1000, 60).tolist()


def logits(model: Model, chunks: list[int], rewound: int = 0) -> tuple[np.ndarray, int]:
    try:
        session = EXECUTOR.open(model.source, SessionOptions(threads=1))
    except EdgeoptError as error:
        pytest.skip(f"this ONNX Runtime has no cache in 8 bits: {error.problem}")
    parts = cache_parts(session.inputs, session.outputs)
    decoder = Decoder(session.engine, parts, 64, shares=True)
    rows = [decoder.run(TOKENS[decoder.past : decoder.past + count]) for count in chunks]
    if rewound:
        decoder.rewind(rewound)
        rows.append(decoder.run(TOKENS[rewound : rewound + 1]))
    bytes_ = decoder.cache_bytes
    session.close()
    return np.concatenate(rows), bytes_


def test_a_cache_in_eight_bits_takes_a_quarter_and_keeps_the_logits():
    model = load_model(TINY)
    ranges = cache_ranges(model, [TOKENS], threads=1)
    assert len(ranges) == 8
    made = make_integer_cache(model, ranges)
    assert made.changes == {"caches in 8 bits": 4}
    (expected, whole), (found, quarter) = logits(model, [60]), logits(made.model, [60])
    assert quarter == whole / 4
    assert 20 < signal_db(found, expected) < 100
    parts, _ = logits(made.model, [20, 39, 1], rewound=50)
    assert signal_db(parts[:60], expected) > 20
    assert signal_db(parts[60], parts[50]) > 20  # what is behind a token that was taken back is the same


def test_a_model_whose_attention_reads_no_integers_stays_as_it_is():
    model = load_model(TINY)
    assert make_integer_cache(model, {}).changes == {}


def test_ranges_of_a_short_text_hold_wherever_its_tokens_stand():
    """Keys of the first layer depend on a token and its place alone: the same tokens further on turn, and no more."""
    model = load_model(TINY)
    cache = cache_parts(model.inputs, model.outputs)
    first = next(part for part in cache if part.past == "past_key_values.0.key")
    ranges = cache_ranges(model, [TOKENS[:4]], threads=1)[first.past]
    session = EXECUTOR.open(model.source, SessionOptions(threads=1))
    keys = session.run(feeds_of(TOKENS[:4] * 60, cache, session.inputs))[first.present]
    session.close()
    largest = np.abs(keys).max(axis=2, keepdims=True)
    assert (np.abs(keys[:, :, :4]).max(axis=2, keepdims=True) < 0.9 * largest).any()
    assert (largest <= 1.0001 * ranges).all()
