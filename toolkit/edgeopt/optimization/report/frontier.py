"""What pruning gave, for the report: accuracy over speed, what is pinned and why, and what each layer kept."""

from __future__ import annotations

from collections.abc import Sequence

from edgeopt.optimization.candidate import BASELINE, Candidate
from edgeopt.optimization.plan import PRUNE
from edgeopt.optimization.report.charts import accuracy_of, emphasis_of, facts_of
from edgeopt.optimization.result import Report
from edgeopt.report.document import Section, Table, Value, make_table
from edgeopt.report.figures import Axis, Estimate, Facts, Point, Points
from edgeopt.steps.prune.account import ACCOUNT, CUT, Account, StoredCut, read_account, read_cut
from edgeopt.system.text import plural

_MOST_PINS, _MOST_NODES, _MOST_LAYERS = 8, 3, 60


def removed_words(report: Report, one: Candidate) -> str:
    """Return how much was pruned of a candidate, or of what it was made of; empty where nothing was.

    Args:
        report: With the files beside its candidates.
        one: Any of its candidates.
    """
    if PRUNE not in one.steps:
        return ""
    cut = cut_of(report, one)
    return f"-{_share(cut, account_of(report)):.0%}" if cut else "pruned"


def account_of(report: Report) -> Account | None:
    """Return what pruning looked at; None where there was none, or its file is gone."""
    return read_account(report.folder / "candidates" / PRUNE / ACCOUNT)


def cut_of(report: Report, one: Candidate) -> StoredCut | None:
    """Return what was pruned of a candidate, or of the one it was made of; None where nothing was."""
    known = {each.name: each for each in report.candidates}
    while PRUNE in one.steps:
        if found := read_cut((report.folder / one.file).with_name(CUT)):
            return found
        if one.parent not in known:
            return None
        one = known[one.parent]
    return None


def pruning_sections(report: Report) -> tuple[Section, ...]:
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
            values=tuple(one for one in facts if one.text),
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
        if any(cut_of(report, one) for one in report.candidates)
        else Section(),
    )


def draw_frontier(report: Report) -> Points | None:
    """Return accuracy, or agreement, over measured speed: pruned models, the dense ones, and integer forms of both."""
    shown = _shown(report)
    is_scored = all(accuracy_of(one) for one in shown)
    points = tuple(point for one in shown if (point := _point(report, one, is_scored=is_scored)))
    pruned = [one for one in shown if PRUNE in one.steps]
    if not pruned or len(points) < 2:
        return None
    first = [one.name for one in shown if PRUNE not in one.steps and not one.precision.startswith("w8")][:1]
    floats = [one for one in pruned if one.steps[-1] == PRUNE]
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


def _shown(report: Report) -> list[Candidate]:
    """Return what the frontier compares: the model that was pruned, what was made of it, and all that is pruned."""
    pruned = [one for one in report.candidates if PRUNE in one.steps and one.speed]
    parents = {one.parent for one in pruned if one.steps[-1] == PRUNE}
    dense = [
        one
        for one in report.candidates
        if PRUNE not in one.steps
        and (one.name in parents or one.parent in parents)
        and (one.speed or one.name == BASELINE)
    ]
    return [*dense, *pruned]


def _point(report: Report, one: Candidate, *, is_scored: bool) -> Point | None:
    known = 1.0 if one.name == BASELINE else one.agreement
    y = accuracy_of(one) if is_scored else None if known is None else Estimate(known)
    if y is None:
        return None
    speed = one.speed
    x = Estimate(speed.speedup, speed.low, speed.high) if speed else Estimate(1.0)
    removed = removed_words(report, one)
    more: Facts = (("channels", removed),) if removed else ()
    return Point(one.name, x, y, (*facts_of(report, one), *more), emphasis_of(report, one))


def _frontier_table(report: Report, shown: Sequence[Candidate]) -> Table:
    return make_table(
        shown,
        {
            "candidate": lambda one: one.name,
            "channels": lambda one: removed_words(report, one),
            "blocks": lambda one: _blocks(report, one),
            "speed": lambda one: str(one.speed) if one.speed else "1.00x",
            report.metric: lambda one: f"{one.score.value:.4f}" if one.score else "",
            "agreement": lambda one: "" if one.agreement is None else f"{one.agreement:.3f}",
            "accuracy": lambda one: one.word,
            "drop": lambda one: "" if one.drop is None else f"{one.drop:+.4f}",
            "at most": lambda one: "" if one.drop_most is None else f"{one.drop_most:+.4f}",
            "repair": lambda one: cut.repair if (cut := cut_of(report, one)) else "",
        },
        words=["repair"],
        chosen=next((i for i, one in enumerate(shown) if one.name == report.chosen), None),
    )


def _share(cut: StoredCut, account: Account | None) -> float:
    """Return which share of the channels that can be removed is gone, 0 to 1."""
    return cut.removed / max(account.removable if account else 0, 1)


def _blocks(report: Report, one: Candidate) -> str:
    cut = cut_of(report, one)
    return f"-{len(cut.removed_blocks)}" if cut and cut.removed_blocks else ""


def _pin_table(account: Account) -> Table | None:
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


def _layer_table(report: Report, account: Account) -> Table:
    """Return the channels of each group in the pruned models, those that lost most first."""
    cuts = {one.name: cut for one in report.candidates if one.steps[-1:] == (PRUNE,) and (cut := cut_of(report, one))}

    def kept(name: str, channels: int, cut: StoredCut) -> int:
        return len(cut.kept[name]) if name in cut.kept else channels

    touched = [one for one in account.groups if any(one.name in cut.kept for cut in cuts.values())]
    touched.sort(key=lambda one: min(kept(one.name, one.channels, cut) for cut in cuts.values()) / one.channels)
    rows = tuple(
        (one.name, str(one.channels), *(str(kept(one.name, one.channels, cut)) for cut in cuts.values()))
        for one in touched[:_MOST_LAYERS]
    )
    return Table(("channels made by", "dense", *cuts), rows)
