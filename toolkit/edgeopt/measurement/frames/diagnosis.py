"""Findings of an experienced engineer: where the time goes, why, and what to do first.

Each rule is a function of the figures and fires only on evidence, which it quotes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgeopt.executors import TRANSFERS
from edgeopt.measurement.bench.finding import Finding, apply_rules
from edgeopt.measurement.frames.figures import Figures
from edgeopt.measurement.resources.trust import TrustLevel
from edgeopt.measurement.samples import OVERHEAD
from edgeopt.measurement.statistics.budget import Verdict
from edgeopt.measurement.statistics.trend import Steadiness
from edgeopt.system.text import typed_duration

_BOUND_RATIO = 0.3
"""A stage or the queue that takes this share of a frame is worth work of its own."""
_TRANSFER_RATIO = 0.15
_TAIL_EXCESS = 0.2
"""How much larger a stage's share of the slow frames is than of all frames."""
_TAIL_RATIO = 1.5
"""p99 over p50 below this is no tail."""
_CORRELATION = 0.5
_GROWTH_RATIO = 1.2
_GROWING_RATIO = 0.1
_FIRST_RATIO = 3.0
_FIRST_MS = 20.0
"""A first inference that is slower by less than this disturbs nobody."""
_SUSTAINED_RATIO = 1.05
_FALLBACK_RATIO = 0.02
_FULL = 0.95
_DROPPED_RATIO = 0.05
_LEAK_MIB = 1.0
"""Grown over the run: less is pages of the allocator, whatever it comes to in an hour."""
_MODEL = "execute"
_BESIDE_THE_MODEL = {
    "load": (
        "Reading and decoding pictures",
        "decode to the model's own size, or take raw camera frames",
        "--source FOLDER",
    ),
    "preprocess": ("Preprocessing", "feed frames that have the model's own size", "--source FOLDER"),
    "postprocess": ("Postprocessing", "raise score_threshold in the recipe", "--recipe recipe.toml"),
}
"""Stage -> where its time goes, the remedy, and the option that measures it again."""


Rule = Callable[[Figures], Finding | None]


def explain(figures: Figures, findings: Sequence[Finding]) -> str:
    """Return a paragraph: where the time goes, and why; empty without figures."""
    where = _where(figures)
    if not findings:
        return f"{where} Nothing else stands out." if where else ""
    return " ".join([*([where] if where else []), *map(str, findings)])


def find_all(figures: Figures) -> tuple[Finding, ...]:
    """Return what every rule finds, the most urgent first."""
    return apply_rules(RULES, figures)


def _where(figures: Figures) -> str:
    if not figures.shares or figures.service_p50_ms is None:
        return ""
    ranked = sorted(figures.shares.items(), key=lambda item: -item[1].mean_ratio)[:2]
    parts = " and ".join(f"{share.mean_ratio:.0%} in {name}" for name, share in ranked)
    return f"A frame takes {_ms(figures.service_p50_ms)} (median), {parts}."


def _ms(value: float) -> str:
    return f"{value:.3g} ms" if value < 1000 else f"{value:.0f} ms"


def again(figures: Figures, *options: str) -> str:
    """Return the command that measures the same model again, with other options."""
    target = [f"--target {figures.target}"] if figures.target else []
    return " ".join(["edgeopt bench", figures.model, *target, *options])


def _load_at(figures: Figures, rate_per_s: float) -> tuple[str, ...]:
    """Return the option for the same load at another rate of all streams together."""
    if figures.load is None:
        return ()
    return (f"--load {figures.load.at_rate(float(f'{rate_per_s / figures.streams:.3g}'))}",)


def find_distrust(figures: Figures) -> Finding | None:
    """The machine disturbed the run: no figure of it should decide anything."""
    trust = figures.trust
    if trust is None or trust.level is TrustLevel.TRUSTED or not trust.reasons:
        return None
    return Finding(
        "distrust",
        trust.warning,
        "; ".join(map(str, trust.reasons)),
        f"stop what disturbed it: {trust.reasons[0].name}",
        again(figures, "--seconds 60"),
    )


def find_bad_attribution(figures: Figures) -> Finding | None:
    """The stages do not add up to frames run without marks."""
    attribution = figures.attribution
    if attribution is None or attribution.valid or not attribution.n:
        return None
    what = "Timing the stages changes the time of a frame, so do not believe their shares"
    if attribution.residual_ns < 0:
        what = "The machine changed while frames with and without marks were compared, so do not believe the shares"
    return Finding("attribution", what, str(attribution), command=again(figures, "--seconds 30"))


def find_unsteady(figures: Figures) -> Finding | None:
    """The times never settled."""
    warmup = figures.warmup
    if warmup is None or warmup.status is Steadiness.STEADY:
        return None
    return Finding(
        "unsteady",
        "The times never settled",
        "; ".join(warmup.reasons) or "no stretch of the run is steady",
        command=again(figures, "--minutes 5"),
    )


def find_provider_fallback(figures: Figures) -> Finding | None:
    """Nodes run on another provider than the one that was asked for."""
    placed = figures.nodes_by_provider
    elsewhere = {name: share for name, share in placed.items() if name != figures.provider}
    total = sum(elsewhere.values())
    if not figures.provider or not placed or total < _FALLBACK_RATIO:
        return None
    most = max(elsewhere, key=lambda name: elsewhere[name])
    target = f" --target {figures.target}" if figures.target else ""
    return Finding(
        "provider fallback",
        f"{total:.0%} of the model does not run on {figures.provider}",
        f"{most} runs {elsewhere[most]:.0%}; tensors are copied between the two",
        command=f"edgeopt inspect {figures.model}{target}",
    )


def find_queue_bound(figures: Figures) -> Finding | None:
    """Frames wait long or are dropped: more arrive than are served, or they come in bursts."""
    wait, response, dropped = figures.queue_wait_p50_ms, figures.response_p50_ms, figures.dropped_ratio or 0.0
    waits = wait is not None and bool(response) and wait / (response or 1.0) >= _BOUND_RATIO
    if not waits and dropped < _DROPPED_RATIO:
        return None
    queue_bound = [f"a frame waits for {_ms(wait)} of {_ms(response)}"] if waits and wait and response else []
    queue_bound += [f"{dropped:.1%} of the frames are dropped"] if dropped else []
    if figures.utilisation is not None:
        queue_bound.append(f"the workers are busy {figures.utilisation:.0%} of the time")
    what, command = _what_queues(figures)
    return Finding("queue", what, ", ".join(queue_bound), command=command)


def _what_queues(figures: Figures) -> tuple[str, str]:
    offered, capacity, busy = figures.offered_per_s, figures.capacity_per_s, figures.utilisation
    if offered and capacity and offered > capacity:
        what = f"Frames arrive faster than they are served: {offered:.3g} against {capacity:.3g} a second"
        return what, again(figures, *_load_at(figures, 0.9 * capacity))
    if busy is not None and busy < _FULL:
        return "Frames arrive in bursts and wait", again(figures, "--find-capacity")
    if figures.queue and figures.queue != "latest":
        return "Most of the delay is waiting in the queue", again(figures, "--queue latest")
    return "More frames arrive than are served in time", again(figures, "--find-capacity")


def find_oversubscription(figures: Figures) -> Finding | None:
    """More threads than cores: they take turns, and a quota stops all of them at once."""
    threads, cores = figures.threads, figures.cores
    if threads is None or cores is None or threads <= cores:
        return None
    fit = max(1, int(cores))
    return Finding(
        "oversubscription",
        "The engine has more threads than cores",
        f"{threads} threads on {cores:.3g} cores",
        command=again(figures, f"--threads {fit}"),
    )


def _largest(figures: Figures) -> str:
    return max(figures.shares, key=lambda name: figures.shares[name].mean_ratio) if figures.shares else ""


def _is_bound_by(figures: Figures, stage: str) -> bool:
    return _largest(figures) == stage and figures.shares[stage].mean_ratio >= _BOUND_RATIO


def _stage_evidence(figures: Figures, stage: str) -> str:
    share = f"{figures.shares[stage].mean_ratio:.0%} of the frame"
    took = figures.stage_p50_ms.get(stage)
    return f"{_ms(took)}, {share}" if took is not None else share


def find_bound(figures: Figures) -> Finding | None:
    """A stage beside the model takes the largest part, or one of several in which it computes."""
    stage = _largest(figures)
    if stage in ("", _MODEL, OVERHEAD, *TRANSFERS) or not _is_bound_by(figures, stage):
        return None
    if stage not in _BESIDE_THE_MODEL:
        what = f"The stage {stage} takes the largest part of a frame"
        return Finding(stage, what, _stage_evidence(figures, stage), command=again(figures, "--trace trace.json"))
    subject, do, option = _BESIDE_THE_MODEL[stage]
    what = f"{subject} takes the largest part of a frame, so a faster model helps little"
    return Finding(stage, what, _stage_evidence(figures, stage), do, again(figures, option))


def find_execute_bound(figures: Figures) -> Finding | None:
    """The model itself takes the largest part."""
    if not _is_bound_by(figures, _MODEL):
        return None
    what, evidence = "The model itself takes the largest part of a frame", _stage_evidence(figures, _MODEL)
    if figures.target and not figures.is_bundle:
        on = f" --on {figures.on}" if figures.on else ""
        command = f"edgeopt optimize {figures.model} --target {figures.target}{on}"
        return Finding(_MODEL, what, evidence, command=command)
    do = "optimize the model it was made of with a smaller input, or allow more drop: --max-drop"
    return Finding(_MODEL, what, evidence, do)  # a bundle is what optimize made


def find_growth(figures: Figures) -> Finding | None:
    """The last stage takes longer the more an answer holds, so crowded scenes are slow."""
    growth = figures.growth
    share = figures.shares.get(growth.stage) if growth else None
    if growth is None or share is None or max(share.mean_ratio, share.tail_ratio) < _GROWING_RATIO:
        return None
    if growth.correlation < _CORRELATION or growth.ratio < _GROWTH_RATIO:
        return None
    return Finding(
        "growth",
        f"The stage {growth.stage} takes longer the more a frame shows, so crowded frames are slow",
        f"{_ms(growth.few_ms)} where few things are found, {_ms(growth.many_ms)} where many are; "
        f"rank correlation {growth.correlation:.2f} over {growth.frames} frames",
        "raise score_threshold or lower max_detections in the recipe",
        again(figures, "--recipe recipe.toml"),
    )


def find_transfer_bound(figures: Figures) -> Finding | None:
    """Copies to and from the device take a good part."""
    parts = {name: figures.shares[name].mean_ratio for name in TRANSFERS if name in figures.shares}
    if sum(parts.values()) < _TRANSFER_RATIO:
        return None
    larger = max(parts, key=lambda name: parts[name])
    return Finding(
        "transfer",
        f"Copying between host and device takes {sum(parts.values()):.0%} of the frame",
        f"{larger} alone takes {_stage_evidence(figures, larger)}",
        command=again(figures, "--batch 1,2,4,8"),
    )


def find_tail_stage(figures: Figures) -> Finding | None:
    """One stage makes the slow frames slow."""
    p50, p99 = figures.service_p50_ms, figures.service_p99_ms
    if not p50 or p99 is None or p99 / p50 < _TAIL_RATIO or not figures.shares:
        return None
    name, share = max(figures.shares.items(), key=lambda item: item[1].tail_ratio - item[1].mean_ratio)
    if share.tail_ratio - share.mean_ratio < _TAIL_EXCESS:
        return None
    return Finding(
        "tail",
        f"The stage {name} makes the slow frames slow",
        f"p99 is {p99 / p50:.1f} times p50; {name} takes {share.tail_ratio:.0%} of slow frames and "
        f"{share.mean_ratio:.0%} of all frames",
        command=again(figures, "--trace trace.json"),
    )


def find_first_run(figures: Figures) -> Finding | None:
    """The first inference is much slower than the others."""
    first, steady = figures.first_ms, figures.steady_p50_ms
    if first is None or not steady or first / steady < _FIRST_RATIO or first - steady < _FIRST_MS:
        return None
    return Finding(
        "first run",
        "The first inference is slow, so run one before the first real frame",
        f"{_ms(first)} against {_ms(steady)} later",
        do="run a made-up input right after it is loaded" if figures.is_opening_told else "",
        command="" if figures.is_opening_told else again(figures, "--cold"),
    )


def find_session_cost(figures: Figures) -> Finding | None:
    """Most of a cold start is creating the session."""
    whole, session = figures.cold_first_ms, figures.cold_session_ms
    if not whole or session is None or session / whole < 0.5:
        return None
    return Finding(
        "cold start",
        "Most of a cold start is creating the session",
        f"{_ms(session)} of the {_ms(whole)} to the first answer",
        "compare it with the start from the saved optimized graph",
        again(figures, "--cold"),
    )


def find_slowdown(figures: Figures) -> Finding | None:
    """The device gets slower over minutes."""
    if figures.sustained_low is None or figures.sustained_low < _SUSTAINED_RATIO:
        return None
    ratio = figures.sustained_ratio or figures.sustained_low
    return Finding(
        "sustained",
        "The device gets slower while it works",
        f"the last fifth of the run takes {ratio:.2f} times as long as the first, at least {figures.sustained_low:.2f}",
        "cool the device, or plan with the later figure",
        again(figures, "--minutes 10"),
    )


def find_memory_growth(figures: Figures) -> Finding | None:
    """Resident memory grows as long as it runs."""
    growth, grown = figures.memory_growth, figures.memory_grown_mib
    if growth is None or grown is None or not growth.is_rising or grown < _LEAK_MIB:
        return None
    return Finding(
        "memory",
        "Memory grows while it runs",
        f"{grown:.3g} MiB in this run, {growth.value:.3g} MiB an hour, at least {growth.low:.3g}",
        command=again(figures, "--minutes 10"),
    )


def find_undecided(figures: Figures) -> Finding | None:
    """The run is too short to decide about the budget."""
    judged = figures.budget
    if judged is None or judged.verdict is not Verdict.INCONCLUSIVE or not judged.frames_needed:
        return None
    budget = f"--budget {typed_duration(judged.budget_ms)}"
    return Finding(
        "budget",
        "The run is too short to decide about the budget",
        f"{judged.misses} of {judged.n} frames missed it; {judged.frames_needed} more would decide",
        command=again(figures, budget, f"--frames {judged.n + judged.frames_needed}"),
    )


RULES: tuple[Rule, ...] = (
    find_distrust,
    find_bad_attribution,
    find_unsteady,
    find_provider_fallback,
    find_oversubscription,
    find_queue_bound,
    find_bound,
    find_transfer_bound,
    find_execute_bound,
    find_growth,
    find_tail_stage,
    find_slowdown,
    find_first_run,
    find_session_cost,
    find_memory_growth,
    find_undecided,
)
"""Rules in order of urgency: first those that make the figures void, then those that change most."""
