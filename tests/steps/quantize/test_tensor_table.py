from __future__ import annotations

import json
from pathlib import Path

from edgeopt.steps.quantize.inspection.table import COLUMNS, LayerRow, tensors_json, timed_layers, worst_tensors
from edgeopt.steps.quantize.keep_float.layer_times import BorderTime, LayerTime, LayerTimes
from edgeopt.steps.quantize.search.attempt import KeptTensor, SearchResult

FOUND = SearchResult(
    (),
    "",
    scores_db={"good": 40.0, "bad": 3.0, "worse": 1.0, "without a grid": 0.5},
    plain_db={"good": 41.0, "bad": 31.0, "worse": 30.0, "without a grid": 2.0},
    sensitivities_db={"bad": 12.0},
    kept=(KeptTensor("worse", 1.0, -0.2, 0.5),),
    rounded=frozenset({"good", "bad"}),
    times=LayerTimes({"worse": LayerTime(250_000, 100_000)}, BorderTime(0.0, 0.0)),
)


def test_the_file_holds_every_tensor_the_worst_first() -> None:
    told = json.loads(tensors_json(FOUND))
    assert [one["name"] for one in told["tensors"]] == ["without a grid", "worse", "bad", "good"]
    assert told["tensors"][1] == {
        "name": "worse",
        "channel_sqnr_db": 1.0,
        "sqnr_db": 30.0,
        "answer_sqnr_db": None,
        "rounded": False,
        "kept": {"cost_ms": -0.2, "saved_agreement": 0.5},
        "float_ms": 0.25,
        "integer_ms": 0.1,
    }


def test_layers_that_were_timed_tell_what_integers_save(tmp_path: Path) -> None:
    file = tmp_path / "tensors.json"
    file.write_text(tensors_json(FOUND))
    assert timed_layers(file) == (LayerRow("worse", 1.0, None, 0.25, 0.1, is_kept=True),)
    assert timed_layers(tmp_path / "absent.json") == ()


def test_the_worst_rows_are_those_on_integers_or_kept_from_them(tmp_path: Path) -> None:
    file = tmp_path / "tensors.json"
    file.write_text(tensors_json(FOUND))
    rows = worst_tensors(file, 2)
    assert rows == (
        ("worse", "1.0", "30.0", "", "costs -0.20 ms, saves 0.500 agreement"),
        ("bad", "3.0", "31.0", "12.0", ""),
    )
    assert all(len(row) == len(COLUMNS) for row in rows)
    assert len(worst_tensors(file)) == 3


def test_without_a_search_there_are_no_rows(tmp_path: Path) -> None:
    assert worst_tensors(tmp_path / "tensors.json") == ()
