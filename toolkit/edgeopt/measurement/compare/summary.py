"""The result of `compare` as a document."""

from __future__ import annotations

from collections.abc import Callable

from edgeopt.measurement.compare import charts
from edgeopt.measurement.compare.result import Compared, Comparison
from edgeopt.measurement.samples import FRAME
from edgeopt.measurement.sides import SideFigure
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.report.document import CommandOutcome, Document, Section, Table, Value, VerdictLines, make_table
from edgeopt.system.text import format_bytes, format_score, plural

Judged = tuple[Compared, str, Ratio]
"""(compared model, part of its frame, ratio of its time to that of the first)."""


def summarize(result: Comparison) -> Document:
    """Return what a reader sees: what was compared, the ratios, and how far to believe them."""
    return Document(
        result,
        subject=result.rows[0].label,
        title=f"Compared with {result.rows[0].label}",
        sections=(
            Section("Times in ms", _subjects(result), figures=charts.overview(result)),
            Section(f"Speed as a multiple of {result.rows[0].label}'s", _ratios(result)),
            *_own_sections(result),
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
    """Return what the wholes say of the fastest of the others."""
    first, best = result.rows[0], result.fastest
    facts = []
    if (quality := best.quality) and quality.loss:
        facts.append(Value(quality.metric, f"{quality.loss_name} of {best.label}: {quality.loss}"))
    if (ratio := best.ratios.get(result.whole)) is None:
        return VerdictLines(
            CommandOutcome.NOT_DECIDED, f"too few {result.whole}s to compare {best.label}", tuple(facts)
        )
    outcome = _OUTCOMES.get(ratio.verdict, CommandOutcome.NOT_DECIDED)
    equal = f", equal within {ratio.margin:.1%}" if outcome is CommandOutcome.EQUIVALENT else ""
    if outcome is CommandOutcome.NOT_DECIDED and (more := _to_decide(result, ratio)):
        facts.append(Value("to decide", more))
    if result.trust:
        facts.append(Value("machine", result.trust.warning or result.trust.level.upper()))
    facts.append(Value("fed with", result.source))
    sentence = f"{best.label} is {ratio} as fast as {first.label}, whole {result.whole}s{equal}"
    return VerdictLines(outcome, sentence, tuple(facts))


def _subjects(result: Comparison) -> Table:
    qualities = [row.quality for row in result.rows if row.quality]
    metric = qualities[0].metric if qualities else "metric"
    loss = qualities[0].loss_name if qualities else "drop"
    interval = f"95 % of the {loss}"

    def time(part: str, name: str) -> Callable[[Compared], str]:
        return lambda compared: _ms(getattr(compared.times[part], name))

    columns: dict[str, Callable[[Compared], str]] = {"model": lambda compared: compared.label}
    columns |= {f"{part} p50": time(part, "p50_ms") for part in result.parts}
    columns |= {f"{part} p99": time(part, "p99_ms") for part in result.parts if _has_tails(result, part)}
    columns |= {
        metric: lambda row: format_score(row.quality.value) if row.quality else "",
        loss: lambda row: _loss(row, 0),
        interval: lambda row: _loss(row, 1),
        "agreement": lambda row: _share(row.quality.agreement) if row.quality else "",
        "size": lambda row: "" if row.size_bytes is None else format_bytes(row.size_bytes),
    }
    more = list(dict.fromkeys(name for row in result.rows for name in row.facts.more))
    columns |= {name: _more(name) for name in more}
    columns["front"] = lambda row: "front" if row.on_front else ""
    whole = result.whole
    parts = [part for part in reversed(result.parts) if part != whole]
    minor = [part for part in parts if whole == FRAME and part != "execute"]
    less = [
        interval,
        *(f"{part} p99" for part in parts),
        *more,
        *(f"{part} p50" for part in minor),
        "front",
        "agreement",
        "size",
    ]
    less += [*(f"{part} p50" for part in parts if part not in minor), f"{whole} p99", loss, f"{whole} p50"]
    return make_table(result.rows, columns, words=["front"], less=less)


def _own_sections(result: Comparison) -> tuple[Section, ...]:
    """Return the figures beside those that are judged, and the settings of the engines; none where there are none."""
    names = dict.fromkeys(name for row in result.rows for name in row.facts.figures)
    cells = [(name, row, row.facts.figures[name]) for name in names for row in result.rows if name in row.facts.figures]
    sections = list[Section]()
    if cells:
        columns: dict[str, Callable[[tuple[str, Compared, SideFigure]], str]] = {
            "figure": lambda cell: cell[0],
            "model": lambda cell: cell[1].label,
            "median": lambda cell: f"{cell[2]} {cell[2].unit}",
            "95 % interval": lambda cell: cell[2].interval,
        }
        sections.append(Section("Figures", make_table(cells, columns, words=["model"])))
    if any(row.facts.settings for row in result.rows):
        values = (
            Value(row.label, "; ".join(f"{name} {value}" for name, value in row.facts.settings.items()))
            for row in result.rows
        )
        sections.append(Section("Settings", values=tuple(values)))
    return tuple(sections)


def _loss(row: Compared, place: int) -> str:
    """Return the estimate of a loss (place 0) or its interval (1)."""
    if row.quality is None or row.quality.loss is None:
        return ""
    return str(row.quality.loss).partition(" ")[2 * place]


def _has_tails(result: Comparison, part: str) -> bool:
    """Return whether any of them ran often enough for a p99: a column of nothing says nothing."""
    return any(row.times[part].p99_ms is not None for row in result.rows)


def _more(name: str) -> Callable[[Compared], str]:
    return lambda row: row.facts.more.get(name, "")


def _share(agreement: float | None) -> str:
    return "" if agreement is None else f"{agreement:.1%}"


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
        Value("times", f"ms of single {result.whole}s"),
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
    machine = result.rows[0].facts.environment
    if machine.facts:
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
    return f"about {max(more, 1):.0f} s more"
