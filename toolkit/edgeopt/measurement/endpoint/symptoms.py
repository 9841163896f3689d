"""Complaints of a server's users, recognised from its figures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgeopt.measurement.endpoint.result import EndpointResult, EndpointTimes
from edgeopt.measurement.generation.diagnosis import Symptoms
from edgeopt.measurement.generation.doubts import doubts_of_answers
from edgeopt.measurement.statistics.quantile import Quantile


def symptoms_of(result: EndpointResult) -> Symptoms:
    """Return the figures that complaints are recognised from."""
    ordered = sorted(result.alone, key=lambda times: (times.prompt_tokens, result.alone.index(times)))
    short, long, tiny, load = ordered[0], ordered[-1], result.tiny, result.loaded
    tiny_ttft, tiny_whole = ms_of(tiny.ttft.p50), ms_of(tiny.answer.p50)
    rows = [(f"TTFT of {times.name}", times.ttft, 1.0) for times in (tiny, *ordered)]
    rows += [
        (f"TPOT behind {times.name}", times.tpot, times.output_tokens) for times in ordered if times.output_tokens > 1
    ]
    alone = Symptoms(
        model=result.model,
        doubts=tuple(doubts_of_answers(rows)),
        again=f"edgeopt bench --endpoint {result.address}",
        network_ms=result.round_trip_ms,
        queue_ms=ms_of(long.queue.p50),
        tiny_ttft_ms=tiny_ttft,
        tiny_prompt_tokens=tiny.prompt_tokens or None,
        prompt_tokens=long.prompt_tokens or None,
        ttft_ms=ms_of(long.ttft.p50),
        server_ttft_ms=long.server_ttft_ms,
        tpot_ms=ms_of(long.tpot.p50),
        server_tpot_ms=long.server_tpot_ms,
        burst_ratio=long.burst_ratio,
        whole_ms=ms_of(long.answer.p50),
        output_tokens=long.output_tokens,
        tiny_after_ratio=(tiny_whole - tiny_ttft) / tiny_ttft if tiny_ttft and tiny_whole else None,
        gap_max_ms=_longest(long),
        short_prompt_tokens=short.prompt_tokens or None if len(ordered) > 1 else None,
        short_ttft_ms=ms_of(short.ttft.p50),
        short_tpot_ms=ms_of(short.tpot.p50),
        tokens_per_s=long.tokens_per_s,
        good_ratio=long.good / max(long.asked, 1),
    )
    if load is None:
        return alone
    return replace(
        alone,
        load=result.load,
        load_ttft_ms=ms_of(load.ttft.p50),
        load_ttft_p95_ms=ms_of(load.ttft.p95) or ms_of(load.ttft.p90),
        load_queue_ms=ms_of(load.queue.p50),
        load_tpot_ms=ms_of(load.tpot.p50),
        load_server_tpot_ms=load.server_tpot_ms,
        load_burst_ratio=load.burst_ratio,
        load_gap_max_ms=_longest(load),
        load_refused_ratio=max(0.0, load.lost_ratio - float(np.mean([times.lost_ratio for times in ordered]))),
        load_tokens_per_s=load.tokens_per_s,
        load_good_ratio=load.good / max(load.asked, 1),
    )


def ms_of(quantile: Quantile) -> float | None:
    """Return a quantile in milliseconds; None where it is not known."""
    return quantile.value_ms


def _longest(times: EndpointTimes) -> float | None:
    return None if times.itl.max_ns is None else times.itl.max_ns / 1e6
