"""The result of `compare` as a document."""

from __future__ import annotations

from collections.abc import Callable

from edgeopt.measurement.compare import charts
from edgeopt.measurement.compare.result import Compared, Comparison
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.report.document import CommandOutcome, Document, Section, Table, Value, VerdictLines, make_table
from edgeopt.system.text import format_bytes, plural

Judged = tuple[Compared, str, Ratio]
"""What was compared, a part of its frame, and the ratio to the first."""


def summarize(result: Comparison) -> Document:
    """Return what a reader sees: what was compared, the ratios, and how far to believe them."""
    return Document(
        command="compare",
        subject=result.rows[0].label,
        title=f"Compared with {result.rows[0].label}",
        data=result.as_json(),
        sections=(
            Section("Times in ms", _subjects(result), figures=charts.overview(result)),
            Section(f"Speed as a multiple of {result.rows[0].label}'s", _ratios(result)),
            Section("Where the time goes", figures=charts.time_charts(result), is_detail=True),
            Section(notes=result.notes),
            Section("How to read it", values=_how(result), is_detail=True),
        ),
        verdict=_verdict(result),
        key_figures=charts.key_figures(result),
    )


_OUTCOMES = {
    Change.FASTER: CommandOutcome.FASTER,
    Change.SLOWER: CommandOutcome.SLOWER,
    Change.EQUIVALENT: CommandOutcome.EQUIVALENT,
}


def _verdict(result: Comparison) -> VerdictLines:
    """Return what whole frames say of the fastest of the others."""
    first, *others = result.rows
    best = max(others, key=lambda other: other.ratios["frame"].speedup)
    ratio = best.ratios["frame"]
    outcome = _OUTCOMES.get(ratio.verdict, CommandOutcome.NOT_DECIDED)
    equal = f", equal within {ratio.margin:.1%}" if outcome is CommandOutcome.EQUIVALENT else ""
    facts = [Value("accuracy", f"{best.label} drops {best.drop}")] if best.drop else []
    if outcome is CommandOutcome.NOT_DECIDED and (more := _to_decide(result, ratio)):
        facts.append(Value("to decide", more))
    if result.trust:
        facts.append(Value("machine", result.trust.warning or result.trust.level.upper()))
    return VerdictLines(outcome, f"{best.label} is {ratio} as fast as {first.label}, whole frames{equal}", tuple(facts))


def _subjects(result: Comparison) -> Table:
    scored = result.rows[0].scored

    def time(part: str, name: str) -> Callable[[Compared], str]:
        return lambda compared: _ms(getattr(compared.times[part], name))

    columns: dict[str, Callable[[Compared], str]] = {"model": lambda compared: compared.label}
    columns |= {f"{part} p50": time(part, "p50_ms") for part in result.parts}
    columns |= {f"{part} p99": time(part, "p99_ms") for part in result.parts}
    columns |= {
        scored.accuracy.metric if scored else "metric": lambda value: (
            f"{value.scored.accuracy.value:.4f}" if value.scored else ""
        ),
        "drop": lambda value: f"{value.drop.value:+.4f}" if value.drop else "",
        "95 % of the drop": lambda value: f"[{value.drop.low:+.4f}, {value.drop.high:+.4f}]" if value.drop else "",
        "size": lambda value: "" if value.size_bytes is None else format_bytes(value.size_bytes),
        "front": lambda value: "front" if value.on_front else "",
    }
    stages = [other for other in reversed(result.parts) if other not in ("frame", "execute")]
    tails, medians = [f"{one} p99" for one in (*stages, "execute")], [f"{one} p50" for one in stages]
    less = ["95 % of the drop", *tails, *medians, "front", "size", "execute p50", "frame p99", "drop", "frame p50"]
    return make_table(result.rows, columns, words=["front"], less=less)


def _ratios(result: Comparison) -> Table:
    columns: dict[str, Callable[[Judged], str]] = {
        "model": lambda entry: entry[0].label,
        "part": lambda entry: entry[1],
        "speed": lambda entry: f"{entry[2].speedup:.3f}x",
        "95 % interval": lambda entry: f"[{entry[2].low:.3f}, {entry[2].high:.3f}]",
        "verdict": lambda entry: str(entry[2].verdict),
        "margin": lambda entry: f"{entry[2].margin:.1%}",
        "to decide": lambda entry: _to_decide(result, entry[2]),
    }
    judged = [(row, part, ratio) for row in result.rows for part, ratio in row.ratios.items()]
    return make_table(judged, columns, words=["part", "verdict", "to decide"], less=["margin", "to decide"])


def _how(result: Comparison) -> tuple[Value, ...]:
    """Return how the figures are to be read; a terminal's reader finds them in the docs."""
    first = result.rows[0].label
    values = [
        Value("times", "ms of single frames"),
        Value("speed", f"as a multiple of {first}'s; FASTER or SLOWER beyond the margin"),
        Value("front", f"nothing else is proven better in {result.front_axes}"),
    ]
    if result.null:
        null = "; ".join(
            f"{part} {ratio.speedup:.3f}x [{ratio.low:.3f}, {ratio.high:.3f}]" for part, ratio in result.null.items()
        )
        values.append(Value("in turns", f"{result.seconds:.0f} s on {result.source}; equal within {result.margin:.1%}"))
        values.append(Value("null", f"{first} against itself: {null}"))
    if result.trust:
        values.append(Value("machine", str(result.trust)))
    if machine := result.environments.get(first):
        values.append(Value("on", f"{machine.cpu}, {plural(machine.cores, 'core')}, {machine.system}"))
        values += [Value("command", machine.command, is_command=True)] if machine.command else []
    return tuple(values)


def _ms(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"


def _to_decide(result: Comparison, ratio: Ratio) -> str:
    more = result.more_seconds(ratio)
    if more == 0:
        return ""
    if more is None:
        return "no run would: it sits on the margin" if result.null else "measure in turns"
    return f"about {more:.0f} s more"
