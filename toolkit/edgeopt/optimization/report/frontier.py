"""The results of pruning for the report: accuracy over speed, what is pinned and why, and what each layer kept."""

from __future__ import annotations

from collections.abc import Sequence

from edgeopt.optimization.candidate import BASELINE, Candidate
from edgeopt.optimization.plan import PRUNE
from edgeopt.optimization.report.charts import accuracy_of, emphasis_of, facts_of
from edgeopt.optimization.result import ModelReport
from edgeopt.report.document import Section, Table, Value, make_table
from edgeopt.report.figures import Axis, ChartPoint, Estimate, Facts, Points
from edgeopt.steps.prune.account import ACCOUNT, CUT, PruningAccount, StoredCut, read_account, read_cut
from edgeopt.system.text import format_drop, format_score, plural

_MOST_PINS, _MOST_NODES, _MOST_LAYERS = 8, 3, 60


def removed_words(report: ModelReport, candidate: Candidate) -> str:
    """Return how much was pruned of a candidate, or of what it was made of; empty where nothing was.

    Args:
        report: With the files beside its candidates.
        candidate: Any of its candidates.
    """
    if PRUNE not in candidate.steps:
        return ""
    cut = cut_of(report, candidate)
    return f"-{_share(cut, account_of(report)):.0%}" if cut else "pruned"


def account_of(report: ModelReport) -> PruningAccount | None:
    """Return what pruning looked at; None where there was none, or its file is gone."""
    return read_account(report.folder / "candidates" / PRUNE / ACCOUNT)


def cut_of(report: ModelReport, candidate: Candidate) -> StoredCut | None:
    """Return what was pruned of a candidate, or of the one it was made of; None where nothing was."""
    known = {each.name: each for each in report.candidates}
    while PRUNE in candidate.steps:
        if cut := read_cut((report.folder / candidate.file).with_name(CUT)):
            return cut
        if candidate.parent not in known:
            return None
        candidate = known[candidate.parent]
    return None


def pruning_sections(report: ModelReport) -> tuple[Section, ...]:
    """Return the frontier, the pins and the layers; none where nothing was pruned or looked at."""
    account = account_of(report)
    if account is None:
        return ()
    figure, shown = draw_frontier(report), _shown(report)
    why = Value("why", account.why)
    learned = f"{account.ranking} on {plural(account.pictures, 'picture')}" if account.pictures else account.ranking
    facts = (
        why,
        Value("ranked by", learned if account.pictures else f"{learned}: no calibration pictures, weights alone"),
        Value("step", account.step_reason),
        Value("sparsity", account.sparsity),
    )
    return (
        Section(
            "Pruning",
            _frontier_table(report, shown) if figure else None,
            values=tuple(fact for fact in facts if fact.text),
            figures=(figure,) if figure else (),
            is_detail=True,
        ),
        Section("Channels that cannot be removed", _pin_table(account), is_detail=True, is_folded=True),
        Section(
            "Channels kept, layer by layer",
            _layer_table(report, account),
            text=f"All numbers of kept channels: candidates/*/{CUT}.",
            is_detail=True,
            is_folded=True,
        )
        if any(cut_of(report, candidate) for candidate in report.candidates)
        else Section(),
    )


def draw_frontier(report: ModelReport) -> Points | None:
    """Return accuracy, or agreement, over measured speed: pruned models, the dense ones, and integer forms of both."""
    shown = _shown(report)
    is_scored = all(accuracy_of(candidate) for candidate in shown)
    points = tuple(point for candidate in shown if (point := _point(report, candidate, is_scored=is_scored)))
    pruned = [candidate for candidate in shown if PRUNE in candidate.steps]
    if not pruned or len(points) < 2:
        return None
    first = [
        candidate.name
        for candidate in shown
        if PRUNE not in candidate.steps and not candidate.precision.startswith("w8")
    ][:1]
    floats = [candidate for candidate in pruned if candidate.steps[-1] == PRUNE]
    line = [*first, *(one.name for one in sorted(floats, key=lambda one: one.speed.speedup if one.speed else 1.0))]
    axis = Axis(report.metric) if is_scored else Axis("agreement with the original")
    return Points(
        title="Accuracy over speed, pruned and dense",
        text="Up and right is better; whiskers are 95 % intervals. The line joins the dense float model and its pruned "
        "forms; INT8 stands beside it, of the dense model and of a pruned one.",
        x=Axis("speed", "times the original's"),
        y=axis,
        points=points,
        paths=(tuple(line),),
    )


def _shown(report: ModelReport) -> list[Candidate]:
    """Return what the frontier compares: the model that was pruned, what was made of it, and all that is pruned."""
    pruned = [candidate for candidate in report.candidates if PRUNE in candidate.steps and candidate.speed]
    parents = {candidate.parent for candidate in pruned if candidate.steps[-1] == PRUNE}
    dense = [
        candidate
        for candidate in report.candidates
        if PRUNE not in candidate.steps
        and (candidate.name in parents or candidate.parent in parents)
        and (candidate.speed or candidate.name == BASELINE)
    ]
    return [*dense, *pruned]


def _point(report: ModelReport, candidate: Candidate, *, is_scored: bool) -> ChartPoint | None:
    known = 1.0 if candidate.name == BASELINE else candidate.agreement
    y = accuracy_of(candidate) if is_scored else None if known is None else Estimate(known)
    if y is None:
        return None
    speed = candidate.speed
    x = Estimate(speed.speedup, speed.low, speed.high) if speed else Estimate(1.0)
    removed = removed_words(report, candidate)
    more: Facts = (("channels", removed),) if removed else ()
    return ChartPoint(candidate.name, x, y, (*facts_of(report, candidate), *more), emphasis_of(report, candidate))


def _frontier_table(report: ModelReport, shown: Sequence[Candidate]) -> Table:
    return make_table(
        shown,
        {
            "candidate": lambda candidate: candidate.name,
            "channels": lambda candidate: removed_words(report, candidate),
            "blocks": lambda candidate: _blocks(report, candidate),
            "speed": lambda candidate: str(candidate.speed) if candidate.speed else "1.00x",
            report.metric: lambda candidate: format_score(candidate.score.value) if candidate.score else "",
            "agreement": lambda candidate: "" if candidate.agreement is None else f"{candidate.agreement:.3f}",
            "accuracy": lambda candidate: candidate.word,
            "drop": lambda candidate: format_drop(candidate.drop),
            "at most": lambda candidate: format_drop(candidate.drop_most),
            "repair": lambda candidate: cut.repair if (cut := cut_of(report, candidate)) else "",
        },
        words=["repair"],
        chosen=next((i for i, candidate in enumerate(shown) if candidate.name == report.chosen), None),
    )


def _share(cut: StoredCut, account: PruningAccount | None) -> float:
    """Return which share of the channels that can be removed is gone, 0 to 1."""
    return cut.removed / max(account.removable if account else 0, 1)


def _blocks(report: ModelReport, candidate: Candidate) -> str:
    cut = cut_of(report, candidate)
    return f"-{len(cut.removed_blocks)}" if cut and cut.removed_blocks else ""


def _pin_table(account: PruningAccount) -> Table | None:
    """Return why channels are pinned, the most first, and the first nodes of each reason."""
    rows = []
    for reason, count in [*account.reasons.items()][:_MOST_PINS]:
        nodes = account.nodes_of(reason)
        named = ", ".join(nodes[:_MOST_NODES]) + (
            f" and {len(nodes) - _MOST_NODES} more" if len(nodes) > _MOST_NODES else ""
        )
        rows.append((reason, str(count) if count else "", str(len(nodes)) if nodes else "", named))
    if not rows:
        return None
    return Table(("why", "channels", "nodes", "first of them"), tuple(rows), frozenset({"why", "first of them"}))


def _layer_table(report: ModelReport, account: PruningAccount) -> Table:
    """Return the channels of each group in the pruned models, those that lost most first."""
    cuts = {
        candidate.name: cut
        for candidate in report.candidates
        if candidate.steps[-1:] == (PRUNE,) and (cut := cut_of(report, candidate))
    }

    def kept(name: str, channels: int, cut: StoredCut) -> int:
        return len(cut.kept[name]) if name in cut.kept else channels

    touched = [group for group in account.groups if any(group.name in cut.kept for cut in cuts.values())]
    touched.sort(
        key=lambda group_row: (
            min(kept(group_row.name, group_row.channels, cut) for cut in cuts.values()) / group_row.channels
        )
    )
    rows = tuple(
        (
            group_row.name,
            str(group_row.channels),
            *(str(kept(group_row.name, group_row.channels, cut)) for cut in cuts.values()),
        )
        for group_row in touched[:_MOST_LAYERS]
    )
    return Table(("channels made by", "dense", *cuts), rows)
