"""Complaints about slow language models, recognised from figures: the cause, and what to do first.

Each rule is a function of the figures, fires only on evidence, which it quotes, and is silent where a figure that it
needs was not measured. Times that nobody notices are no complaint, whatever their ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from edgeopt.measurement.bench.finding import Finding, apply_rules

# All are judgement, none was fitted; docs/serving-measured.md has them with their reasons.
_NOTICED_MS = 100.0
"""Milliseconds below which a response seems immediate (Nielsen 1993)."""
_TINY_MS = 150.0
"""A first token that comes sooner is not called slow: noticed, and half as much for a display and a network."""
_LONG_MS = 1000.0
"""A reader notices that nothing happens: thought is not interrupted below it (Nielsen 1993)."""
_FREEZE_MS = 250.0
"""A gap that a reader takes for a stop: a word is read in about as long (Brysbaert 2019: 238 a minute)."""
_FREEZE_RATIO = 10.0
"""And so many tokens' time: a slow model is slow, and does not stutter."""
_MOST_OF_IT = 0.5
"""A part of a time is its cause where it is the larger one: mending another cannot halve it."""
_MANY_TOKENS = 8
"""Enough tokens: of fewer pieces no one can tell whether they came one by one."""
_AT_ONCE = 0.05
"""Share of an answer in which all its pieces come: a model that writes takes longer, even behind a long prompt."""
_BURST = 0.5
"""Share of an answer in one read beyond which its TPOT is that of a read, and no longer that of its tokens."""
_APART_RATIO = 2.0
"""Between TPOT here and as the server wrote it: the way to a client delays tokens, it does not halve their time."""
_PEAK_RATIO = 3.0
"""A queue of as many as are served doubles the wait; more than that is a queue that grows."""
_BIG_RATIO = 1.3
"""Less is within what two lengths differ by through caches and clocks of a processor."""
_LIVE_RATIO = 1.3
"""Gain of tokens/s below which nobody would say that batch works."""
_REFUSED = 0.01
"""One request in a hundred: each user meets it within a day."""
_GOOD = 0.9
"""Share of answers in time that people call fine: one of ten late is felt."""
_STEPS = 5.0
"""A tiny prompt is one run of the model, as each token is: so many times as long is something else."""
_HIDDEN_TOKENS = 64
"""Tokens that a server may count for one word: templates take up to about 30."""


@dataclass(frozen=True, slots=True)
class Symptoms:
    """Figures of a server or a model; None where they were not measured. Medians unless said."""

    model: str = "MODEL"
    again: str = "edgeopt bench MODEL"
    """The command that measures it again."""
    network_ms: float | None = None
    """Milliseconds of a round trip, and of connecting where each request connects."""
    queue_ms: float | None = None
    """One request at a time."""
    tiny_ttft_ms: float | None = None
    """TTFT of the shortest prompt, one request at a time."""
    tiny_prompt_tokens: float | None = None
    """Tokens that the server counts for it."""
    prompt_tokens: float | None = None
    """Prompt tokens of the longest prompt."""
    ttft_ms: float | None = None
    """TTFT of the longest prompt, one request at a time."""
    server_ttft_ms: float | None = None
    """The same, as the server sees it, without queue and network."""
    tpot_ms: float | None = None
    server_tpot_ms: float | None = None
    """The same, as the server wrote them."""
    burst_ratio: float | None = None
    """Share of an answer's pieces that came in one read."""
    whole_ms: float | None = None
    """Milliseconds from the request to the end of its answer."""
    output_tokens: float | None = None
    tiny_after_ratio: float | None = None
    """Ratio at the shortest prompt: time after the first token over the time before it."""
    gap_max_ms: float | None = None
    """The longest between two pieces of one answer, one request at a time."""
    short_prompt_tokens: float | None = None
    """Short prompt tokens of the shortest of the lengths that were asked for, where there are several."""
    short_ttft_ms: float | None = None
    short_tpot_ms: float | None = None
    doubts: tuple[str, ...] | None = None
    """Why these figures cannot be trusted; None or empty: they can."""
    load: str = ""
    """How requests came together."""
    load_ttft_ms: float | None = None
    load_ttft_p95_ms: float | None = None
    load_queue_ms: float | None = None
    load_tpot_ms: float | None = None
    load_server_tpot_ms: float | None = None
    load_burst_ratio: float | None = None
    load_gap_max_ms: float | None = None
    load_refused_ratio: float | None = None
    """Share of requests without an answer, beyond those that get none alone."""
    tokens_per_s: float | None = None
    load_tokens_per_s: float | None = None
    good_ratio: float | None = None
    """Share of answers that keep the limits, one request at a time."""
    load_good_ratio: float | None = None


Rule = Callable[[Symptoms], Finding | None]


def find_complaints(symptoms: Symptoms) -> tuple[Finding, ...]:
    """Return what every rule finds, the most urgent first.

    Where the figures cannot be trusted that is said, and besides it only what is counted or lies in the machine itself.
    """
    rules = RULES if find_distrust(symptoms) is None else (find_distrust, find_refused, find_freeze)
    return apply_rules(rules, symptoms)


def _ms(value: float) -> str:
    return f"{value:.3g} ms" if value < 1000 else f"{value / 1000:.3g} s"


def find_distrust(s: Symptoms) -> Finding | None:
    """The machine, the number of answers, or how tokens arrive: no complaint is read from such figures."""
    joined = [] if _is_buffered(s) else list(_joined(s))  # who holds a stream back is found by another rule
    doubts = (*joined, *(s.doubts or ()))
    if not doubts:
        return None
    do = "close what else runs here, measure longer (--seconds 60), and read the figures then"
    if joined:
        do = "read TPOT as the server says it; give client and server a core each, or measure from another machine"
    return Finding("distrust", f"These figures cannot be trusted yet: {'; '.join(doubts)}", "; ".join(doubts), do)


def _joined(s: Symptoms) -> Iterator[str]:
    """Yield how times of tokens are not those in which they were written."""
    for where, here_ms, server_ms, burst in (
        ("alone", s.tpot_ms, s.server_tpot_ms, s.burst_ratio),
        (f"under {s.load}", s.load_tpot_ms, s.load_server_tpot_ms, s.load_burst_ratio),
    ):
        if here_ms is None:
            continue
        text = "" if server_ms is None else f"; the server wrote one in {_ms(server_ms)}"
        if burst is not None and burst > _BURST:
            share = f"{burst:.0%} of an answer came in one read"
            yield f"{share} {where}, so that TPOT here, {_ms(here_ms)}, is none{text}"
        elif server_ms is not None and _is_apart(here_ms, server_ms, s.output_tokens or 1.0):
            yield f"a token {where} takes {_ms(here_ms)} here{text}"


def _is_apart(here_ms: float, server_ms: float, tokens: float) -> bool:
    """Whether tokens come faster than they were written, or so much later that a reader notices."""
    is_late = here_ms > _APART_RATIO * server_ms and (here_ms - server_ms) * tokens >= _NOTICED_MS
    return here_ms * _APART_RATIO < server_ms or is_late


def find_slow_when_tiny(s: Symptoms) -> Finding | None:
    """'Slow even for tiny prompts': something fixed comes before the first token of every answer."""
    if s.tiny_ttft_ms is None or s.tpot_ms is None or s.tiny_ttft_ms < max(_TINY_MS, _STEPS * s.tpot_ms):
        return None
    if s.ttft_ms is not None and s.tiny_ttft_ms < _MOST_OF_IT * s.ttft_ms:
        return None  # the prompt's length decides
    if _is_buffered(s) or _is_far(s, s.tiny_ttft_ms):
        return None  # said by another rule, with its own cause
    evidence = f"{_ms(s.tiny_ttft_ms)} to the first token of the shortest prompt, {_ms(s.tpot_ms)} for each one after"
    what = "Slow even for tiny prompts: the same time passes before every answer"
    if s.queue_ms is not None and s.queue_ms >= _MOST_OF_IT * s.tiny_ttft_ms:
        do = "others hold the slots, or too few are there: look at its queue, give it more slots"
        return Finding("tiny", f"{what}, in the queue", f"{evidence}; {_ms(s.queue_ms)} in the queue", do)
    if s.tiny_prompt_tokens is not None and s.tiny_prompt_tokens >= _HIDDEN_TOKENS:
        text = f"{evidence}; the server counts {s.tiny_prompt_tokens:.0f} tokens for one word"
        do = "let the hidden prompt's cache be reused (a prefix that is always the same), or shorten it"
        return Finding("tiny", f"{what}: a hidden prompt", text, do)
    do = "keep the model loaded and warm, and look for what runs before it: start, unpacking, checks, guards"
    return Finding("tiny", what, evidence, do)


def _is_far(s: Symptoms, ttft_ms: float) -> bool:
    """Whether most of a first token's time passes outside the server."""
    if ttft_ms < _NOTICED_MS or s.network_ms is None:
        return False
    if s.server_ttft_ms is None:
        return s.network_ms >= _MOST_OF_IT * ttft_ms
    if s.ttft_ms is None:
        return False
    outside_ms = s.ttft_ms - s.server_ttft_ms - (s.queue_ms or 0.0)
    is_on_the_way = s.network_ms >= _MOST_OF_IT * outside_ms  # else it passes in the server, before it counts
    return outside_ms >= _MOST_OF_IT * s.ttft_ms and is_on_the_way


def find_far_away(s: Symptoms) -> Finding | None:
    """'Fine locally, bad in production': the time passes between the client and the model."""
    if s.ttft_ms is None or s.network_ms is None or not _is_far(s, s.ttft_ms):
        return None
    evidence = f"{_ms(s.ttft_ms)} to the first token, {_ms(s.network_ms)} for a round trip that computes nothing"
    evidence += "" if s.server_ttft_ms is None else f"; the server itself takes {_ms(s.server_ttft_ms)}"
    return Finding(
        "far",
        "Fine locally, bad in production: most of the first token's time passes on the way to the model",
        evidence,
        "keep connections open between requests, take proxies out of the way, or move the model nearer",
    )


def _is_buffered(s: Symptoms) -> bool:
    """Whether an answer comes at once, as a model never writes: nearly no time lies between its pieces."""
    if s.whole_ms is None or s.ttft_ms is None or (s.output_tokens or 0) < _MANY_TOKENS or s.ttft_ms < _NOTICED_MS:
        return False
    if s.whole_ms - s.ttft_ms > _AT_ONCE * s.whole_ms:
        return False
    return s.tiny_after_ratio is not None and s.tiny_after_ratio < _AT_ONCE


def find_held_back(s: Symptoms) -> Finding | None:
    """'Nothing happens, then it answers fast': a buffer holds the stream back, or the prompt takes most of the time."""
    if s.ttft_ms is None or s.whole_ms is None or s.tpot_ms is None:
        return None
    what = "Nothing happens, then it answers fast"
    if _is_buffered(s):
        evidence = (
            f"the first piece after {_ms(s.ttft_ms)}, the last after {_ms(s.whole_ms)}, {s.output_tokens:.0f} tokens"
        )
        do = "let whatever lies between pass each event on at once: proxy_buffering off, no compression of the stream"
        return Finding("held back", f"{what}: something on the way holds the stream back", evidence, do)
    tiny = s.tiny_ttft_ms if s.tiny_ttft_ms is not None else 0.0
    if s.ttft_ms < _LONG_MS or s.ttft_ms < _MOST_OF_IT * s.whole_ms or tiny >= _MOST_OF_IT * s.ttft_ms:
        return None
    if _is_far(s, s.ttft_ms):
        return None
    length = "" if s.prompt_tokens is None else f" of {s.prompt_tokens:.0f} tokens"
    evidence = f"{_ms(s.ttft_ms)} of {_ms(s.whole_ms)} pass before the first token of a prompt{length}"
    do = "let prompts begin alike, so that their cache is reused, shorten them, or optimize for their length"
    return Finding("prefill", f"{what}: reading the prompt takes most of the time", evidence, do)


_STUTTER = "It starts, then freezes or stutters"


def _is_freeze(gap_ms: float | None, tpot_ms: float | None) -> bool:
    return gap_ms is not None and tpot_ms is not None and gap_ms >= max(_FREEZE_MS, _FREEZE_RATIO * tpot_ms)


def find_freeze(s: Symptoms) -> Finding | None:
    """'It starts, then freezes': single gaps far longer than the others, with nobody beside."""
    if not _is_freeze(s.gap_max_ms, s.tpot_ms):
        return None
    evidence = f"a gap of {_ms(s.gap_max_ms or 0)} between tokens that take {_ms(s.tpot_ms or 0)}, nobody else asking"
    do = "look for what stops the machine: swapped memory, throttling, other programs; or for a lossy network"
    return Finding("stutter", f"{_STUTTER}, even alone", evidence, do)


def find_stutter(s: Symptoms) -> Finding | None:
    """'It starts, then stutters': the same, where others are beside."""
    if not _is_freeze(s.load_gap_max_ms, s.tpot_ms) or find_freeze(s):
        return None
    evidence = f"a gap of {_ms(s.load_gap_max_ms or 0)} under {s.load}, {_ms(s.gap_max_ms or 0)} alone"
    do = "run long prompts in parts (chunked prefill) beside the answers of others: edgeopt serve does"
    return Finding("stutter", f"{_STUTTER}: prompts of others run between its tokens", evidence, do)


_PEAK = "Explodes at peak hours: more is asked for than one machine answers"


def find_refused(s: Symptoms) -> Finding | None:
    """'Explodes at peak hours': more is asked than is answered, and the rest is refused."""
    if (s.load_refused_ratio or 0.0) < _REFUSED:
        return None
    evidence = f"{s.load_refused_ratio or 0:.1%} of the requests under {s.load} got no answer"
    return Finding("peak", _PEAK, evidence, "plan for the peak: a second machine, shorter answers, or fewer clients")


def find_peak(s: Symptoms) -> Finding | None:
    """'Explodes at peak hours': more is asked than is answered, and the rest waits."""
    if s.load_ttft_p95_ms is None or s.ttft_ms is None or find_refused(s):
        return None
    grown = s.load_ttft_p95_ms >= max(_PEAK_RATIO * s.ttft_ms, _LONG_MS)
    queued = s.load_queue_ms is None or s.load_ttft_ms is None or s.load_queue_ms >= _MOST_OF_IT * s.load_ttft_ms
    if not grown or not queued:
        return None
    evidence = f"p95 of the first token {_ms(s.load_ttft_p95_ms)} under {s.load}, {_ms(s.ttft_ms)} alone"
    evidence += "" if s.load_queue_ms is None else f"; {_ms(s.load_queue_ms)} in the queue"
    return Finding(
        "peak", _PEAK, evidence, "give it more slots while TPOT allows it, then a second machine; bound the queue"
    )


def find_big_customers(s: Symptoms) -> Finding | None:
    """'Big customers feel slower': tokens behind long texts take longer."""
    lengths, tpots = (s.short_prompt_tokens, s.prompt_tokens), (s.short_tpot_ms, s.tpot_ms)
    if None in (*lengths, *tpots, s.short_ttft_ms, s.ttft_ms):
        return None
    few, many, fast, slow = (float(length or 0) for length in (*lengths, *tpots))
    if many < 2 * few or not few or not fast:
        return None
    each_short, each_long = (float(number or 0) for number in ((s.short_ttft_ms or 0) / few, (s.ttft_ms or 0) / many))
    text = f"prompts of {few:.0f} and {many:.0f} tokens"
    what = "Big customers feel slower"
    if slow >= _BIG_RATIO * fast and slow * (s.output_tokens or 1) >= _NOTICED_MS:
        evidence = f"{_ms(fast)} and {_ms(slow)} for a token behind {text}"
        do = "keep less in the cache (INT8 cache, a window, shorter histories); GroupQueryAttention copies none of it"
        return Finding("big", f"{what}: each token reads the whole text before it", evidence, do)
    if each_long >= _BIG_RATIO * each_short and (s.ttft_ms or 0) >= _LONG_MS:
        evidence = f"{_ms(each_short)} and {_ms(each_long)} to the first token for each token of {text}"
        do = "let prompts begin alike, so that their cache is reused, or give long ones a queue of their own"
        return Finding("big", f"{what}: long prompts cost more than their length", evidence, do)
    return None


def find_batch_not_live(s: Symptoms) -> Finding | None:
    """'Batch works, live feels broken': all together get more, each one gets it too late."""
    known = (s.tokens_per_s, s.load_tokens_per_s, s.good_ratio, s.load_good_ratio)
    if None in known:
        return None
    alone, together, good, load_good = (float(one or 0) for one in known)
    if together < _LIVE_RATIO * alone or good < _GOOD or load_good >= _GOOD:
        return None
    evidence = f"{together:.3g} tokens/s under {s.load} in place of {alone:.3g}, but {load_good:.0%} of answers in time"
    evidence += "" if s.load_tpot_ms is None else f"; a token takes {_ms(s.load_tpot_ms)}"
    do = "fewer slots for live requests, a priority of their own, and batch work where nobody waits"
    return Finding("live", "Batch works, live feels broken: throughput is paid with each one's time", evidence, do)


RULES: tuple[Rule, ...] = (
    find_distrust,
    find_refused,
    find_peak,
    find_far_away,
    find_held_back,
    find_slow_when_tiny,
    find_freeze,
    find_stutter,
    find_batch_not_live,
    find_big_customers,
)
"""Rules in order of urgency."""
