"""Several texts in one cache: what is laid out anew keeps its texts, and no binding keeps logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeopt.executors.onnxruntime.decoder import CachePart, Decoder, reserved
from edgeopt.executors.onnxruntime.rows import SharedRows
from edgeopt.runtime.decoding.opening import open_language_model

TINY = Path(__file__).parents[2] / "models" / "tiny_lm" / "model.onnx"
TEXTS = ([1, 2, 3, 4, 5], [9, 8, 7], [100, 200])


@pytest.fixture(scope="module")
def model():
    with open_language_model(TINY, 1)[0] as opened:
        yield opened


@pytest.mark.parametrize("tokens", [1, 7, 3000])
def test_all_parts_of_a_cache_lie_in_one_piece_one_behind_the_other(tokens):
    parts = [
        CachePart(f"past_key_values.{i}.key", f"present.{i}.key", heads, head, dtype)
        for i, (heads, head, dtype) in enumerate([(2, 32, "float32"), (3, 5, "int8"), (1, 48, "float16")])
    ]
    found = reserved(parts, tokens)
    assert [one.dtype for one in found] == [np.dtype(part.dtype) for part in parts]
    assert [one.nbytes for one in found] == [tokens * part.token_bytes for part in parts]
    begins = [one.ctypes.data for one in found]
    for one, after in zip(found, begins[1:], strict=False):
        assert 0 <= after - (one.ctypes.data + one.nbytes) < 64
    assert {begin % 64 for begin in begins} <= {begins[0] % 64}
    for number, one in enumerate(found, 1):
        assert not one.any()
        one[:] = number
    assert [set(one.tolist()) for one in found] == [{1}, {2}, {3}]


def filled(model) -> SharedRows:
    rows = SharedRows(model.session.engine, model.parts, 3, 32, 200)
    for row, text in enumerate(TEXTS):
        rows.run(row, text)
    return rows


@pytest.mark.parametrize(
    ("count", "capacity", "kept"),
    [(3, 64, [0, 1, 2]), (4, 32, [0, 2]), (2, 16, [2, 0]), (5, 40, [1]), (3, 8, [1, 0, 2])],
)
def test_texts_go_on_where_they_stood_when_the_memory_is_laid_out_anew(model, count, capacity, kept):
    rows, alone = filled(model), filled(model)
    rows.arrange(count, capacity, kept)
    assert [rows.past(i) for i in range(count)] == [len(TEXTS[row]) for row in kept] + [0] * (count - len(kept))
    for to, row in enumerate(kept):
        np.testing.assert_allclose(rows.run(to, [6]), alone.run(row, [6]), atol=1e-4)


def test_a_row_goes_on_behind_a_stored_cache(model):
    text = Decoder(model.session.engine, model.parts, 32, shares=model.shares)
    text.run(TEXTS[0])
    rows, alone = filled(model), filled(model)
    rows.restore(2, text.stored(), 4)
    alone.rewind(0, 4)
    np.testing.assert_allclose(rows.run(2, [6, 7]), alone.run(0, [6, 7]), atol=1e-4)


def test_logits_are_free_when_their_reader_lets_them_go(model):
    rows = filled(model)
    kept = [binding.get_outputs()[-1].has_value() for binding, _ in rows._bindings.values()]
    assert kept == [False] * 3
