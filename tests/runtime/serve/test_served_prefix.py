"""A text before every prompt, and guesses, as options of the server: the same tokens, less computed."""

from __future__ import annotations

from pathlib import Path

import pytest
from served import serving

from edgeopt.running.writing import Prompting
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.runtime.serve.limits import Limits

TINY = Path(__file__).parents[3] / "models" / "tiny_lm" / "model.onnx"
SYSTEM = "import os\nimport sys\n\nclass Reader:\n    def __init__(self, path):\n        self.path = path\n"
ASKED = {"model": "tiny_lm", "temperature": 0, "max_tokens": 24}


@pytest.mark.parametrize(("slots", "guesses"), [(2, None), (1, 3)])
def test_what_stands_before_every_prompt_is_computed_once_and_changes_no_token(tmp_path, slots, guesses):
    file = tmp_path / "system.txt"
    file.write_text(SYSTEM, "utf-8")
    model, _ = open_language_model(TINY, 1)
    with model:
        before = model.tokenizer.encode(SYSTEM)
        held = len(before) + model.begins_with
        expected = model.generate([*before, *model.tokenizer.encode("    def read(")], AnswerOptions(24)).text()
    prompting = Prompting(file, tmp_path / "prefixes")
    for run in range(2):
        limits = Limits(slots=slots)
        with serving("tiny_lm", limits, prompting=prompting, guesses=guesses, uses_draft=False) as server:
            found = server.json("/v1/completions", ASKED | {"prompt": "    def read("})
            assert found["choices"][0]["text"] == expected
            assert found["usage"]["prompt_tokens_details"]["cached_tokens"] == held, run
            assert found["usage"]["prompt_tokens"] > held
            said = {"messages": [{"role": "user", "content": "read it"}]}
            chat = server.json("/v1/chat/completions", ASKED | said)
            cached = chat["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert held < cached < chat["usage"]["prompt_tokens"]
            own = [{"role": "system", "content": "Be brief."}, *said["messages"]]
            longer = server.json("/v1/chat/completions", ASKED | {"messages": own})
            assert longer["usage"]["prompt_tokens"] > chat["usage"]["prompt_tokens"]
    assert len(list((tmp_path / "prefixes").iterdir())) == 2


def test_it_is_told_at_the_start_that_nothing_can_be_stored(tmp_path):
    file = tmp_path / "system.txt"
    file.write_text(SYSTEM, "utf-8")
    with serving("tiny_lm", Limits(slots=1), prompting=Prompting(file, file)) as server:
        assert server.json("/v1/completions", ASKED | {"prompt": "    def read("})["choices"]
        assert any("the prefix is not stored" in one for one in server.told)
