"""Each request is counted once, and what is counted is what Prometheus reads."""

from __future__ import annotations

import re

import pytest
from served import serving

from edgeopt.runtime.serve.holder import Holder
from edgeopt.runtime.serve.limits import Limits
from edgeopt.runtime.serve.watching.metrics_page import metrics_page
from edgeopt.runtime.serve.watching.tally import Tally

PLAIN = {"model": "tiny_lm", "prompt": "import os", "max_tokens": 8, "temperature": 0, "ignore_eos": True}


class Opened:
    def close(self) -> None:
        """Nothing is held."""


def rows_of(tally: Tally) -> dict[str, float]:
    pytest.importorskip("prometheus_client", reason="the extra serve is not installed")
    rows = [row.rpartition(" ") for row in metrics_page([tally]).decode().splitlines() if not row.startswith("#")]
    return {name.replace('name="m"', "").replace("{,", "{").replace("{}", ""): float(value) for name, _, value in rows}


def buckets_of(rows: dict[str, float], name: str) -> dict[str, float]:
    limits = {row: re.search(r'le="([^"]+)"', row) for row in rows if f"{name}_seconds_bucket" in row}
    return {found[1]: rows[row] for row, found in limits.items() if found}


def test_refused_requests_are_refused_and_not_lost_too():
    with serving("tiny_lm", Limits(slots=1, waiting=0)) as server:
        with server.raw(server.post("/v1/completions", PLAIN | {"max_tokens": 900, "stream": True})) as writing:
            assert writing.recv(15) == b"HTTP/1.1 200 OK"
            asked = [server.ask("POST", "/v1/completions", PLAIN)[0] for _ in range(3)]
            refused = asked.count(429)
        for body in (
            PLAIN | {"prompt": "word " * 3000},
            PLAIN | {"stream": True, "prompt": "word " * 3000},
            PLAIN | {"best_of": 2},
        ):
            server.ask("POST", "/v1/completions", body)
    (found,) = server.result
    assert found.refused == refused + 3
    assert found.answered + found.lost == 4 - refused  # the stream was read to its end by its client, or it left


def test_an_answer_has_its_times_in_histograms():
    with serving("tiny_lm") as server:
        whole = server.json("/v1/completions", PLAIN)["edgeopt"]
        server.json("/v1/completions", PLAIN | {"max_tokens": 1})
        first, following = "edgeopt_time_to_first_token_seconds", "edgeopt_time_per_output_token_seconds"
        assert server.metric(f"{first}_count") == 2
        assert server.metric(f'{first}_bucket{{le="+Inf"}}') == 2
        assert server.metric(f"{following}_count") == 1  # one token has no time after the first
        assert server.metric(f"{following}_sum") == pytest.approx(whole["tpot_ms"] / 1e3)
        assert server.metric(f"{first}_sum") >= (whole["queue_ms"] + whole["ttft_ms"]) / 1e3 - 1e-9


def test_buckets_hold_what_took_at_most_so_long():
    tally = Tally("m", ("queue", "prefill", "decode"), Holder(Opened), writes=True)
    for first_ms, each_ms in ((4, 1), (5, 2), (6, 30), (90_000, 1)):
        times = [first_ms * 10**6 + i * each_ms * 10**6 for i in range(3)]
        tally.answer({"queue": 0, "prefill": times[0], "decode": times[-1] - times[0]}, times)
    found = rows_of(tally)
    ttft = buckets_of(found, "first_token")
    assert (ttft["0.001"], ttft["0.005"], ttft["0.01"], ttft["80.0"], ttft["+Inf"]) == (0, 2, 3, 3, 4)
    assert found["edgeopt_time_to_first_token_seconds_sum"] == pytest.approx(90.015)
    tpot = buckets_of(found, "output_token")
    assert (tpot["0.001"], tpot["0.0025"], tpot["0.025"], tpot["0.05"]) == (2, 3, 3, 4)
    assert found['edgeopt_frames_total{outcome="served"}'] == 4


def test_whether_the_model_is_loaded_is_known_at_once():
    holder = Holder(Opened, keep_s=0.0)
    tally = Tally("m", ("a",), holder)
    assert rows_of(tally)["edgeopt_loaded"] == 1
    assert holder.free_if_idle()
    assert rows_of(tally)["edgeopt_loaded"] == 0
    with holder.held():
        assert rows_of(tally)["edgeopt_loaded"] == 1
        assert rows_of(tally)["edgeopt_loads_total"] == 2
