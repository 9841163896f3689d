"""Memory of a server whose language model OpenVINO computes: what the engine holds is foreseen, counted and let go."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("tokenizers", reason="the extra edgeopt[text] is not installed")

from served import served_here, serving
from small_decoders import export_small, written_for

from edgeopt.errors import EdgeoptError
from edgeopt.executors._prompt_graph import OPENVINO
from edgeopt.executors.openvino.memory import held_bytes
from edgeopt.executors.openvino.pages import why_not_on_openvino
from edgeopt.running.serving import ServeOptions
from edgeopt.running.serving_texts import hosted_texts
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.runtime.schedule.memory import resident_bytes
from edgeopt.runtime.serve.limits import Limits
from edgeopt.runtime.serve.writers import OneByOne, Together
from edgeopt.system.machine.memory import give_back

WIDE = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 3, "head_dim": 128}
ASKED = {"prompt": "abc", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
WHY = why_not_on_openvino()
needs_openvino = pytest.mark.skipif(bool(WHY), reason=WHY or "OpenVINO computes tokens")
pytestmark = served_here


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_small(tmp_path_factory.mktemp("wide"), **WIDE)


@pytest.fixture(scope="module", params=[16, 8])
def file(request: pytest.FixtureRequest, exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written_for(OPENVINO, exported, tmp_path_factory.mktemp("form"), bits=request.param)


def needed(file: Path) -> int:
    return hosted_texts(str(file), ServeOptions()).needs.total_bytes


@needs_openvino
def test_what_openvino_holds_is_foreseen_about_as_it_is_and_let_go(file):
    def grown(model_file: Path) -> tuple[int, int]:
        give_back()
        before = resident_bytes()
        with open_language_model(model_file, 1)[0] as model:
            model.generate(list(range(3, 60)), AnswerOptions(4, ends=False)).text()
            give_back()
            most = resident_bytes() - before
        give_back()
        return most, resident_bytes() - before

    grown(file)  # the libraries come with the first
    most, left = grown(file)
    assert needed(file) == file.stat().st_size + held_bytes(file, is_alone=True)
    assert 0.5 * needed(file) < most < 1.5 * needed(file)
    assert left < 0.3 * needed(file)


@needs_openvino
def test_a_server_counts_weights_that_openvino_holds_and_pages_of_all_slots(file):
    model = open_language_model(file, 1)[0]
    assert model.elsewhere is not None
    slots, page = 3, model.elsewhere.page_bytes
    together = Together(model, Limits(slots=slots))
    pages = slots * (model.context * model.token_bytes + page)
    assert together.needs.total_bytes == needed(file) + pages
    assert together._shared._batch._rows._memory.stored_bytes <= pages
    together.close()
    model = open_language_model(file, 1)[0]
    alone = OneByOne(model, uses_draft=False)
    assert alone.needs.total_bytes == needed(file) + model.context * model.token_bytes
    alone.close()


@needs_openvino
def test_a_model_that_memory_does_not_hold_with_what_openvino_holds_is_refused_before_the_port_opens(file):
    with (
        pytest.raises(EdgeoptError, match=r"takes .* of memory, more than --memory"),
        serving(str(file), beside=("tiny_lm",), memory_bytes=needed(file) - 1),
    ):
        pass


@needs_openvino
def test_models_by_openvino_make_room_for_others(file):
    with serving(str(file), Limits(slots=1), beside=(str(file),), memory_bytes=2 * needed(file)) as server:
        first, second = server.json("/healthz")["models"]
        texts = set()
        for name in (first, second, first):
            texts.add(server.json("/v1/completions", ASKED | {"model": name})["choices"][0]["text"])
            loaded = {other for other, values in server.json("/healthz")["models"].items() if values["loaded"]}
            assert loaded == {name}
        assert len(texts) == 1
        assert server.metric_of(first, "edgeopt_loads_total") == 2


def test_without_openvino_nothing_is_foreseen_for_it(exported, tmp_path, monkeypatch):
    file = written_for(OPENVINO, exported, tmp_path)
    monkeypatch.setitem(sys.modules, "openvino", None)  # as if it were not installed
    assert needed(file) == file.stat().st_size
