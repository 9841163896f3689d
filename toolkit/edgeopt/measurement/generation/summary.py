"""The `bench` of a model that writes tokens, as a reader sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from edgeopt.measurement.bench.columns import FIRST_TOKEN, GAPS_WITH_INTERVALS, Cell, timed
from edgeopt.measurement.bench.view import BenchView
from edgeopt.measurement.fresh_process.cold_start import ColdStart
from edgeopt.measurement.fresh_process.summary import cold_section
from edgeopt.measurement.generation.guesses import GuessForecast, GuessPlan
from edgeopt.measurement.generation.result import GenerationResult, LengthTimes
from edgeopt.measurement.generation.under_load.load_summary import load_sections
from edgeopt.measurement.resources.cost import cost_per_token
from edgeopt.measurement.resources.prices import CURRENCY
from edgeopt.report.document import KeyFigure, Section, Value, make_table
from edgeopt.system.text import format_bytes, format_ms, plural


def view_generation(result: GenerationResult) -> BenchView:
    """Return first token, next tokens, and the memory between."""
    values = (
        Value("model", f"{Path(result.file).name}, {format_bytes(result.size_bytes)}, {result.parameters_told}"),
        Value("machine", f"{result.cpu}, {plural(result.threads, 'thread')}"),
        Value("load", f"{result.load_ms:.0f} ms, then {result.first_ttft_ms:.0f} ms to the very first token"),
        Value("cache", _cache(result)),
        *_cost_under_load(result),
        *((Value("guesses", str(result.forecast)),) if result.forecast else ()),
        *map(Value.of_note, result.notes),
    )
    first: dict[str, Cell] = {
        "prompt": lambda times: times.name,
        "answers": lambda times: str(times.answers),
        **FIRST_TOKEN,
        "prefill": lambda times: _rate(times.prefill_tokens_per_s),
        "tokenize p50 ms": timed("tokenize.p50"),
    }
    if any(times.images for times in result.lengths):
        del first["prefill"], first["tokenize p50 ms"]
        first |= {
            "vision p50 ms": timed("encode.p50"),
            "prefill": timed("prefill.p50"),
            "first token": timed("first.p50"),
        }
    elif all(times.encode for times in result.lengths):
        del first["prefill"], first["tokenize p50 ms"]
        first |= {
            "features or tokens": timed("tokenize.p50"),
            "encoder": timed("encode.p50"),
            "prefill": timed("prefill.p50"),
        }
    following: dict[str, Cell] = {
        "prompt": lambda times: times.name,
        "TPOT p50 ms": timed("tpot.p50", interval=True),
        "decode": lambda times: _rate(times.decode_tokens_per_s),
        "end to end p50 ms": timed("answer.p50", interval=True),
        "cost of 1000": lambda times: f"{cost.per_thousand:.3g}" if (cost := result.cost_of(times)) else "",
        "detokenize ms": timed("detokenize.p50"),
    }
    gaps: dict[str, Cell] = {"prompt": lambda times: times.name, **GAPS_WITH_INTERVALS}
    less = ["tokenize p50 ms", "TTFT p95", "TTFT max"]
    decided = "; ".join(f"{name}: {verdict.sentence}" for name, verdict in result.decisive)
    output = plural(round(result.lengths[0].output_tokens), "token")
    sections = (
        Section(
            "Time to the first token",
            make_table(result.lengths, first, less=less, is_whole=True),
        ),
        Section(
            f"Time for each token after it, answers of {output}",
            make_table(result.lengths, following, less=["detokenize ms"], is_whole=True),
        ),
        Section("Gaps between tokens (ITL, ms)", make_table(result.lengths, gaps, is_whole=True)),
        *(_guesses(result.forecast) if result.forecast else ()),
        *(load_sections(result.loads) if result.loads else ()),
        *(_cold(result.cold, result.lengths[0]) if result.cold else ()),
    )
    return BenchView(
        title=f"{result.model}: first token and next",
        ran=values,
        sections=sections,
        sentence=result.trust.heeded(decided) if result.trust else decided,
        facts=tuple(Value(name, str(limit)) for name, verdict in result.limited for limit in verdict.limits),
        key_figures=tuple(_key_figures(result)),
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
