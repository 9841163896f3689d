"""Measure an encoder with a decoder: features, encoder, first tokens and next tokens apart.

TTFT is from the sound or the text to the first token that is chosen: all but the last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import monotonic, perf_counter_ns
from typing import Any

import numpy as np

from edgeopt.errors import EXIT_PASS, EdgeoptError, Note
from edgeopt.graph.files.outside_weights import outside_files
from edgeopt.graph.sound import Sound
from edgeopt.measurement.fresh_process.language_start import run_cold_language
from edgeopt.measurement.fresh_process.start import ColdStart
from edgeopt.measurement.generation.bench import LONGER
from edgeopt.measurement.generation.budget import AnswerVerdict, judge_answers, worst_of
from edgeopt.measurement.generation.held_out import made_up, require_answers
from edgeopt.measurement.generation.options import GenerationOptions
from edgeopt.measurement.generation.right_writer import correction_of_pair
from edgeopt.measurement.generation.sides.turns import Prompt
from edgeopt.measurement.statistics.budget import require_provable
from edgeopt.measurement.statistics.quantile import Summary, summarize
from edgeopt.runtime.decoding.encoder_decoder import EncoderDecoder, open_encoder_decoder
from edgeopt.runtime.decoding.generation import Account, AnswerOptions
from edgeopt.system.amounts import Tenths
from edgeopt.system.machine.environment import read_environment

_LEAST_ANSWERS = 6
_PARTS = ("feed", "encode", "prefill", "ttft", "tpot")


@dataclass(frozen=True, slots=True)
class SourceTimes:
    """Answers to sources of one length."""

    source: str
    """What was heard or read."""
    rows: int
    """That the encoder gave."""
    answers: int
    feed: Summary
    """Making features or tokens."""
    encode: Summary
    prefill: Summary
    """The tokens that an answer begins with, and keys and values of what was heard."""
    ttft: Summary
    tpot: Summary
    judged: AnswerVerdict | None


@dataclass(frozen=True, slots=True)
class SourceBench:
    """An encoder with a decoder on this machine."""

    model: str
    kind: str
    size_bytes: int
    threads: int
    cpu: str
    load_ms: float
    token_bytes: int
    """Token bytes of the cache of an answer."""
    heard_bytes: int
    """Bytes of the cache for one row of what was heard."""
    context: int
    output_tokens: int
    sources: tuple[SourceTimes, ...]
    seconds: float
    notes: tuple[Note, ...] = ()
    cold: ColdStart | None = None
    """Starts of fresh processes, where they were asked for."""

    @property
    def exit_code(self) -> int:
        """0 met, or no budget; 2 a limit is missed, proven; 3 not decided."""
        judged = [source.judged for source in self.sources if source.judged]
        return worst_of(judged).exit_code if judged else EXIT_PASS

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        values = asdict(replace(self, cold=None))
        return values | {"cold": self.cold.to_json()} if self.cold else values


@dataclass(slots=True)
class _Times:
    told: str
    given: Prompt
    rows: int = 0
    series: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in _PARTS})

    def add(self, account: Account) -> None:
        times = account.token_at_ns
        found = {
            "feed": account.tokenize_ns,
            "encode": account.encode_ns,
            "prefill": account.prefill_ns,
            "ttft": times[0],
            "tpot": (times[-1] - times[0]) // max(len(times) - 1, 1),
        }
        for name, value in found.items():
            self.series[name].append(value)
        self.rows = account.heard_rows


def bench_sources(
    folder: Path, options: GenerationOptions, *, tell: Callable[[str, int, int], None] = lambda *_: None
) -> SourceBench:
    """Return the times of answers of a fixed length, which no end token ends.

    Args:
        folder: With encoder and decoder.
        options: What is measured; `prompt_tokens` are lengths of texts. Of a model that hears one window is measured.
        tell: Hears what is done, how far, of how much.

    Raises:
        EdgeoptError: If it is none, or an answer is longer than the model writes.
    """
    require_provable(options.max_miss_ratio, "answers")
    began_s, correction = monotonic(), correction_of_pair(folder)
    before_ns = perf_counter_ns()
    with open_encoder_decoder(folder, options.threads, correction.entries) as opened:
        load_ms, files = (perf_counter_ns() - before_ns) / 1e6, opened.files
        require_answers(opened, options.output_tokens)
        measured = _measure(opened, _sources(opened, options), options, tell)
        return SourceBench(
            model=files.name,
            kind=files.kind,
            size_bytes=opened.size_bytes,
            threads=opened.threads,
            cpu=read_environment().cpu,
            load_ms=load_ms,
            token_bytes=opened.cache.token_bytes,
            heard_bytes=opened.cache.heard_bytes,
            context=files.context,
            output_tokens=options.output_tokens,
            sources=tuple(_judged(times, options) for times in measured),
            seconds=monotonic() - began_s,
            notes=(*files.notes, *correction.notes),
            cold=_cold(folder, opened, measured[0].given, options, tell) if options.cold else None,
        )


def _cold(
    folder: Path,
    opened: EncoderDecoder,
    given: Prompt,
    options: GenerationOptions,
    tell: Callable[[str, int, int], None],
) -> ColdStart:
    """Return starts of fresh processes; this one's model stays open meanwhile, and does nothing."""
    graphs = opened.files.files
    return run_cold_language(
        folder,
        [*graphs, *(outside_file for file in graphs for outside_file in outside_files(file)), opened.files.tokenizer],
        [] if isinstance(given, Sound) else given,
        opened.threads,
        opened.origin.entries,
        repeats=options.repeats,
        tell=lambda done, of: tell("start fresh processes", done, of),
    )


def _sources(opened: EncoderDecoder, options: GenerationOptions) -> list[_Times]:
    """Return a window of noise, or random tokens of each length that is asked for."""
    audio, longest = opened.files.audio, max(options.prompt_tokens)
    if audio is None and longest > opened.reads:
        raise EdgeoptError(
            f"texts of {longest} tokens are longer than the {opened.reads} that the model reads",
            remedy="ask for shorter ones with --prompt-tokens",
        )
    given = made_up(opened, options.prompt_tokens, options.seed)
    if audio is not None:
        return [_Times(f"{audio.samples / audio.rate_hz:g} s of sound", given[0])]
    return [_Times(f"{count} tokens", one) for count, one in zip(options.prompt_tokens, given, strict=True)]


def _measure(
    opened: EncoderDecoder, sources: list[_Times], options: GenerationOptions, tell: Callable[[str, int, int], None]
) -> list[_Times]:
    """Ask for one answer to each source after the other; the first of each is not counted."""
    asked = AnswerOptions(most_tokens=options.output_tokens, ends=False)
    rounds, began_s = -1, monotonic()
    while rounds < _LEAST_ANSWERS or _goes_on(sources, options, monotonic() - began_s):
        for source in sources:
            with opened.generate(source.given, asked) as answer:
                for _ in answer:
                    pass
            if rounds >= 0:
                source.add(answer.account)
        rounds += 1
        began_s = began_s if rounds else monotonic()
        tenths, all_tenths = int(10 * (monotonic() - began_s)), Tenths(10 * options.seconds)
        tell("measure answers", min(tenths, all_tenths), all_tenths)
    return sources


def _goes_on(sources: list[_Times], options: GenerationOptions, took_s: float) -> bool:
    """Whether more answers are wanted: for the time asked for, or to decide a budget."""
    if took_s < options.seconds or options.budget is None or took_s >= LONGER * options.seconds:
        return took_s < options.seconds
    judged = (_judged(source, options).judged for source in sources)
    return any(answer_verdict is not None and not answer_verdict.is_decided for answer_verdict in judged)


def _judged(times: _Times, options: GenerationOptions) -> SourceTimes:
    limits = {"TTFT": times.series["ttft"], "TPOT": times.series["tpot"]}
    judged = judge_answers(options.budget, limits, options.max_miss_ratio) if options.budget else None
    summaries = {name: summarize(np.array(values, np.int64)) for name, values in times.series.items()}
    return SourceTimes(times.told, times.rows, len(times.series["ttft"]), judged=judged, **summaries)
