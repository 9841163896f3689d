"""The times of a language model as a document."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

from edgeopt.measurement.bench.passes_summary import cold_section
from edgeopt.measurement.finding import show_findings
from edgeopt.measurement.fresh_process.start import ColdStart
from edgeopt.measurement.generation.diagnosis import Symptoms, find_complaints
from edgeopt.measurement.generation.doubts import doubts_of_answers
from edgeopt.measurement.generation.guesses import GuessForecast, GuessPlan
from edgeopt.measurement.generation.result import GenerationResult, LengthTimes
from edgeopt.measurement.generation.under_load.load_result import LoadTimes
from edgeopt.measurement.generation.under_load.load_summary import load_sections
from edgeopt.measurement.generation.verdict import verdict_of
from edgeopt.measurement.resources.cost import cost_per_token
from edgeopt.measurement.resources.prices import CURRENCY
from edgeopt.report.document import Document, KeyFigure, Section, Value, VerdictLines, make_table
from edgeopt.system.text import format_bytes, format_ms, plural


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
        doubts=(*result.disturbed, *doubts_of_answers(rows)),
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


def summarize_generation(result: GenerationResult) -> Document:
    """Return what a reader sees: first token, next tokens, and the memory between."""
    values = (
        Value("model", f"{Path(result.file).name}, {format_bytes(result.size_bytes)}, {result.parameters_told}"),
        Value("machine", f"{result.cpu}, {plural(result.threads, 'thread')}"),
        Value("load", f"{result.load_ms:.0f} ms, then {result.first_ttft_ms:.0f} ms to the very first token"),
        Value("cache", _cache(result)),
        *_cost_under_load(result),
        *((Value("guesses", str(result.forecast)),) if result.forecast else ()),
        *map(Value.of_note, result.notes),
    )
    first: dict[str, Callable[[LengthTimes], str]] = {
        "prompt": lambda times: times.name,
        "answers": lambda times: str(times.answers),
        "TTFT p50 ms": lambda times: str(times.ttft.p50),
        "TTFT max": lambda times: format_ms(times.ttft.max_ns),
        "prefill": lambda times: _rate(times.prefill_tokens_per_s),
        "tokenize p50 ms": lambda times: format_ms(times.tokenize.p50.value_ns),
    }
    if any(times.encode for times in result.lengths):
        del first["prefill"], first["tokenize p50 ms"]
        first |= {
            "features or tokens": lambda times: format_ms(times.tokenize.p50.value_ns),
            "encoder": lambda times: format_ms(times.encode.p50.value_ns if times.encode else None),
            "prefill": lambda times: format_ms(times.prefill.p50.value_ns),
        }
    following: dict[str, Callable[[LengthTimes], str]] = {
        "prompt": lambda times: times.name,
        "TPOT p50 ms": lambda times: str(times.tpot.p50),
        "decode": lambda times: _rate(times.decode_tokens_per_s),
        "end to end p50 ms": lambda times: str(times.answer.p50),
        "cost of 1000": lambda times: f"{cost.per_thousand:.3g}" if (cost := result.cost_of(times)) else "",
        "detokenize ms": lambda times: format_ms(times.detokenize.p50.value_ns),
    }
    gaps: dict[str, Callable[[LengthTimes], str]] = {
        "prompt": lambda times: times.name,
        "ITL p50 ms": lambda times: str(times.itl.p50),
        "ITL p95": lambda times: str(times.itl.p95),
        "ITL p99": lambda times: str(times.itl.p99),
        "ITL max": lambda times: format_ms(times.itl.max_ns),
    }
    less = ["tokenize p50 ms", "TTFT max"]
    output = plural(result.lengths[0].output_tokens, "token")
    findings = find_complaints(symptoms_of(result))
    sections = (
        Section(values=values),
        Section(
            "Time to the first token",
            make_table(result.lengths, first, less=less, is_whole=True),
        ),
        Section(
            f"Time for each token after it, answers of {output}",
            make_table(result.lengths, following, less=["detokenize ms"], is_whole=True),
        ),
        Section("Gaps between tokens (ITL)", make_table(result.lengths, gaps, is_whole=True)),
        *(_guesses(result.forecast) if result.forecast else ()),
        *(load_sections(result.loads) if result.loads else ()),
        *(_cold(result.cold, result.lengths[0]) if result.cold else ()),
        *((Section("Diagnosis", values=show_findings(findings)),) if findings else ()),
    )
    return Document(
        "bench",
        result.model,
        f"{result.model}: first token and next",
        result.as_json() | {"findings": [asdict(finding) for finding in findings]},
        sections,
        _verdict(result),
        key_figures=tuple(_key_figures(result)),
        seconds=result.seconds,
    )


def _cache(result: GenerationResult) -> str:
    if result.heard_bytes:
        answer, heard = format_bytes(result.token_bytes), format_bytes(result.heard_bytes)
        return f"{answer} a token of the answer, {heard} a row of what was heard"
    if result.state_bytes and not result.token_bytes:
        return f"none; states of {format_bytes(result.state_bytes)} for a text of any length"
    whole = format_bytes(result.cache_bytes)
    states = f", states of {format_bytes(result.state_bytes)} beside it" if result.state_bytes else ""
    return (
        f"{format_bytes(result.token_bytes)} a token, {whole} for the whole context of {result.context} tokens{states}"
    )


def _cost_under_load(result: GenerationResult) -> tuple[Value, ...]:
    """Return what tokens cost in the best slots, where a price and a load were given."""
    best = result.best_slots
    if result.price_per_s is None or best is None or best.tokens_per_s <= 0:
        return ()
    cost = cost_per_token(result.price_per_s, best.tokens_per_s)
    rate = f"at {cost.tokens_per_s:.4g} tokens/s under {best.load}"
    return (Value("cost", f"{cost.per_thousand:.3g} per 1000 tokens of answers {rate}, {CURRENCY}"),)


def _cold(cold_start: ColdStart, length: LengthTimes) -> tuple[Section]:
    """Return what starts of fresh processes take."""
    text = f"session: model and tokenizer; first: first token behind {length.name}; second: the next"
    return (cold_section(cold_start, Value("of it", text), *map(Value.of_note, cold_start.notes)),)


def _guesses(forecast: GuessForecast) -> tuple[Section]:
    """Return what each number of guesses is predicted to gain."""
    columns: dict[str, Callable[[GuessPlan], str]] = {
        "by": lambda guess_plan: guess_plan.by,
        "guesses": lambda guess_plan: str(guess_plan.guesses),
        "right": lambda guess_plan: f"{guess_plan.acceptance:.0%}",
        "tokens a run": lambda guess_plan: f"{guess_plan.tokens_a_run:.2f}",
        "TPOT": lambda guess_plan: guess_plan.gain_told,
    }
    return (Section("Guesses, predicted from what runs cost and which are right", make_table(forecast.plans, columns)),)


def _verdict(result: GenerationResult) -> VerdictLines | None:
    """Return what the answers prove about the budget; None without one."""
    judged = [(f"prompts of {length.name}", length.judged) for length in result.lengths if length.judged]
    best = result.best_slots
    judged += [(f"{load.load} in {plural(load.slots, 'slot')}", load.judged) for load in result.loads if load.judged]
    parts = judged if best is None else [pair for pair in judged if pair[1] is best.judged]
    return verdict_of(judged, parts, result.exit_code)


def _key_figures(result: GenerationResult) -> Iterator[KeyFigure]:
    last = result.lengths[-1]
    text = f"prompt of {last.name}"
    for label, quantile in (("TTFT, p50", last.ttft.p50), ("TPOT, p50", last.tpot.p50)):
        yield KeyFigure(label, f"{format_ms(quantile.value_ns)} ms", text)
    if best := result.best_slots:
        yield KeyFigure("Throughput", f"{best.tokens_per_s:.4g} tokens/s", f"{best.load}, {plural(best.slots, 'slot')}")
        if best.goodput:
            yield KeyFigure(
                "Goodput", f"{best.goodput.per_s:.3g} per s", f"{best.goodput.good} of {best.goodput.requests}"
            )
    yield KeyFigure("Cache", format_bytes(result.token_bytes), "a token")


def _rate(per_s: float | None) -> str:
    return "n/a" if per_s is None else f"{per_s:.0f} tokens/s"
