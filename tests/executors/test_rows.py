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


def test_rows_take_memory_as_their_texts_get_longer_and_keep_what_they_hold(model):
    engine, chance = model.session.engine, np.random.default_rng(0)
    rows, token_bytes = SharedRows(engine, model.parts, 2, 1000), model.token_bytes
    alone = [Decoder(engine, model.parts, 1000, shares=model.shares) for _ in range(2)]
    sizes = [rows.cache_bytes]
    for row, count in ((0, 100), (1, 20), (0, 60), (0, 1), (1, 500), (0, 3)):
        tokens = chance.integers(0, 1000, count).tolist()
        np.testing.assert_allclose(rows.run(row, tokens)[-1], alone[row].run(tokens)[-1], atol=1e-3)
        sizes.append(rows.cache_bytes)
    for _ in range(120):  # across a border with next tokens of both
        expected = [text.run([5])[-1] for text in alone]
        np.testing.assert_allclose(rows.run_first([5, 5]), expected, atol=1e-3)
    assert sizes[0] == 2 * 128 * token_bytes
    assert sizes == sorted(sizes)
    assert 2 * 520 * token_bytes <= sizes[-1] < rows.cache_bytes < 2 * 1000 * token_bytes
    rows.run(1, [7] * (1000 - rows.past(1)))
    assert rows.cache_bytes == 2 * 1000 * token_bytes


def test_a_stored_cache_gets_the_memory_that_it_needs(model):
    text = Decoder(model.session.engine, model.parts, 400, shares=model.shares)
    text.run(list(range(300)))
    rows = SharedRows(model.session.engine, model.parts, 2, 400)
    rows.restore(1, text.stored(), 300)
    np.testing.assert_allclose(rows.run(1, [6])[-1], text.run([6])[-1], atol=1e-3)


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
