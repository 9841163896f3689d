"""Choose what to cut next: the most time saved for the least loss, over and over."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from edgeopt.steps.prune.costs import Cut
from edgeopt.steps.prune.network.layer_shapes import Keep

_LEAST_SAVED = 5e-4
"""Least saved of the dense model's time: what saves less is noise of the table."""
_LEAST_LOSS = 1e-4
"""Losses below it are alike: a held-out picture or two decide them."""


class Savings(Protocol):
    """The time that cuts save; see `Costs`."""

    dense: float

    def saved(self, cuts: Sequence[Cut], keep: Keep, removed: Sequence[str] = ()) -> Sequence[float]:
        """Return what each cut would save on top of what is cut already."""
        ...


@dataclass(frozen=True, slots=True)
class CutChoice:
    """The cuts at one place of the frontier."""

    keep: Mapping[str, int]
    """Channels that stay, by the name of each group that loses any."""
    removed: tuple[str, ...]
    """Names of blocks that are gone, in the order in which they went."""
    saved_ratio: float
    """Share of the dense model's time, as the table has it."""
    loss: float
    """The sum of what each cut loses alone."""

    @property
    def speedup(self) -> float:
        """The dense model's time over this one's, as the table has it."""
        return 1 / max(1 - self.saved_ratio, 1e-9)


def choices(
    savings: Savings,
    levels: Mapping[str, Sequence[int]],
    loss: Callable[[Cut], float],
    blocks: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[CutChoice]:
    """Yield one choice after another, each with one cut more than the last, until nothing saves time.

    A cut is worth the time that it saves, where its neighbours are cut as they are by then, over the loss that it
    adds. Losses are those of each cut alone, and add up.

    Args:
        savings: What cuts save.
        levels: Channels that a group may keep, the most first, by its name.
        loss: Of the dense model with one group cut, or one block gone; infinite where it is hopeless.
        blocks: Groups that go with a block, by the block's name.
    """
    inside = dict(blocks or {})
    keep, removed, known = dict[str, int](), list[str](), dict[Cut, float]()
    saved_so_far = loss_so_far = 0.0

    def added(cut: Cut) -> float:
        """Return the loss that a cut adds to what its group has lost already."""
        if cut not in known:
            known[cut] = loss(cut)
        before = [known[Cut(word, keep[word])] for word in (cut.group, *inside.get(cut.block, ())) if word in keep]
        return known[cut] - math.fsum(before)

    while True:
        best: tuple[float, float, Cut] | None = None
        for saved, cut in _useful(savings, levels, keep, removed, inside):
            more = added(cut)
            if not math.isfinite(more):
                continue
            worth = saved / max(more, _LEAST_LOSS)
            if best is None or worth > best[0]:
                best = worth, saved, cut
        if best is None:
            return
        _, saved, cut = best
        loss_so_far += max(added(cut), 0.0)
        saved_so_far += saved
        if cut.group:
            keep[cut.group] = cut.keep
        else:
            removed.append(cut.block)
            keep = {name: kept for name, kept in keep.items() if name not in inside[cut.block]}
        yield CutChoice(dict(sorted(keep.items())), tuple(removed), saved_so_far / savings.dense, loss_so_far)


def _useful(
    savings: Savings,
    levels: Mapping[str, Sequence[int]],
    keep: Mapping[str, int],
    removed: Sequence[str],
    inside: Mapping[str, Sequence[str]],
) -> Iterator[tuple[float, Cut]]:
    """Yield what may be cut next and what it saves: of each group the next level that saves anything."""
    gone = {group for block in removed for group in inside[block]}
    further = {
        name: [Cut(name, count) for count in counts if count < keep.get(name, math.inf)]
        for name, counts in sorted(levels.items())
        if name not in gone
    }
    cuts = [cut for some in further.values() for cut in some[:1]]
    cuts += [Cut(block=name) for name in sorted(inside) if name not in removed and not _overlaps(name, removed, inside)]
    for saved, cut in zip(savings.saved(cuts, keep, removed), cuts, strict=True):
        if saved > _LEAST_SAVED * savings.dense:
            yield saved, cut
        elif cut.group:
            deeper = further[cut.group][1:]
            result = zip(savings.saved(deeper, keep, removed), deeper, strict=True)
            yield from ((more, other) for more, other in list(result)[:2] if more > _LEAST_SAVED * savings.dense)


def _overlaps(name: str, removed: Sequence[str], inside: Mapping[str, Sequence[str]]) -> bool:
    return any(set(inside[name]) & set(inside[word]) for word in removed)
