"""Complaints about a model that writes tokens, recognised from its figures on this machine."""

from __future__ import annotations

from dataclasses import replace

from edgeopt.measurement.generation.diagnosis import Symptoms
from edgeopt.measurement.generation.doubts import doubts_of_answers
from edgeopt.measurement.generation.result import GenerationResult
from edgeopt.measurement.generation.under_load.load_result import LoadTimes


def symptoms_of(result: GenerationResult) -> Symptoms:
    """Return the figures that complaints are recognised from: one answer at a time, and the best slots under a load."""
    ordered = sorted(result.lengths, key=lambda length: length.prompt_tokens)
    short, long = ordered[0], ordered[-1]
    ttft, tpot = long.ttft.p50.value_ms, long.tpot.p50.value_ms
    has_several = short.prompt_tokens < long.prompt_tokens
    judged = long.judged.limits if long.judged else ()
    rows = [(f"TTFT of {times.name}", times.ttft, 1.0) for times in ordered]
    rows += [(f"TPOT behind {times.name}", times.tpot, float(times.output_tokens)) for times in ordered]
    alone = Symptoms(
        model=result.model,
        doubts=(*(result.trust.disturbances if result.trust else ()), *doubts_of_answers(rows)),
        prompt_tokens=float(long.prompt_tokens),
        ttft_ms=ttft,
        tpot_ms=tpot,
        whole_ms=None if ttft is None or tpot is None else ttft + tpot * (long.output_tokens - 1),
        output_tokens=float(long.output_tokens),
        gap_max_ms=None if long.itl.max_ns is None else long.itl.max_ns / 1e6,
        short_prompt_tokens=float(short.prompt_tokens) if has_several else None,
        short_ttft_ms=short.ttft.p50.value_ms,
        short_tpot_ms=short.tpot.p50.value_ms,
        tokens_per_s=None if not long.answer.p50.value_ms else 1e3 * long.output_tokens / long.answer.p50.value_ms,
        good_ratio=1 - max(limit_result.counted.miss_ratio for limit_result in judged) if judged else None,
    )
    return alone if (load := result.best_slots) is None else _under(load, alone)


def _under(load: LoadTimes, alone: Symptoms) -> Symptoms:
    """Return them with what a load did."""
    times, good = load.all, load.goodput
    return replace(
        alone,
        load=load.load,
        load_ttft_ms=times.ttft.p50.value_ms,
        load_ttft_p95_ms=times.ttft.p95.value_ms or times.ttft.p90.value_ms,
        load_queue_ms=times.queue.p50.value_ms,
        load_tpot_ms=times.tpot.p50.value_ms,
        load_gap_max_ms=None if times.itl.max_ns is None else times.itl.max_ns / 1e6,
        load_refused_ratio=load.unfinished / max(load.requests, 1),
        load_tokens_per_s=load.tokens_per_s,
        load_good_ratio=good.good / max(good.requests, 1) if good else None,
    )
