"""A language model is timed as it answers for several clients at once."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from edgeopt.cli import cli
from edgeopt.graph.model import find_model
from edgeopt.measurement.fresh_process.answers import answer_fresh
from edgeopt.measurement.generation.sides.at_once import ForClients, for_clients
from edgeopt.measurement.generation.sides.turns import PARTS
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import open_language_model

PROMPT, ASKED = list(range(5, 45)), AnswerOptions(6, guesses=0, ends=False)


@pytest.fixture(scope="module")
def model():
    with open_language_model(find_model("tiny_lm"), 1)[0] as opened:
        yield opened


def test_each_client_asks_for_a_prompt_of_its_own_and_the_slowest_counts(model: LanguageModel):
    alone = [[piece.token for piece in model.generate([*PROMPT[i:], *PROMPT[:i]], ASKED)] for i in range(3)]
    assert len({tuple(answer) for answer in alone}) > 1
    with ForClients(model, 3) as clients:
        for _ in range(2):
            clients.forget()
            with clients.generate(PROMPT, ASKED) as answers:
                found = [piece.token for piece in answers]
            assert found == [token for answer in alone for token in answer]
            each = [answer.account for answer in answers._answers]
            assert not any(account.reused_tokens for account in each), "no prompt is another's beginning"
            times = answers.account.token_at_ns
            assert list(times) == sorted(times)
            assert len(times) == ASKED.most_tokens
            for number, at_ns in enumerate(times):
                assert at_ns >= max(account.token_at_ns[number] for account in each)
        assert clients._slots is not None
        work = clients._slots.work
        assert work.token_runs < work.tokens, "their next tokens are one run"


def test_a_model_for_one_client_is_asked_as_it_is(model: LanguageModel):
    with for_clients({"a": model}, 1) as sides:
        assert sides == {"a": model}
    with for_clients({"a": model}, 2) as sides:
        assert isinstance(sides["a"], ForClients)


def test_a_fresh_process_times_both_forms_for_as_many_clients():
    file = find_model("tiny_lm")
    turns = answer_fresh(file, file, [PROMPT, PROMPT[::-1]], ASKED, 1, 2, 0, {}, 3)
    for form in turns:
        assert form.times_ns.shape == (2, len(PARTS))
        assert (form.times_ns > 0).all()


def test_a_budget_of_one_answer_and_several_clients_are_refused_in_one_line(tmp_path):
    asked = ["optimize", "tiny_lm", "-t", "cpu", "-o", str(tmp_path), "--clients", "4", "--budget", "ttft:20ms"]
    done = CliRunner().invoke(cli, asked)
    assert done.exit_code == 1
    assert "a --budget is of one answer, and --clients asks for several" in done.output
    done = CliRunner().invoke(cli, [*asked[:6], "--clients", "0"])
    assert done.exit_code != 0
    assert "Traceback" not in done.output
