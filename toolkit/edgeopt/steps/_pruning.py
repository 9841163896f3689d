"""The wish for the step `prune`, as it is typed: `auto`, `0.3`, `1.5x`, `off`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from edgeopt.errors import EdgeoptError
from edgeopt.system.text import short

AUTO, OFF = "auto", "off"
NOT_PRUNED = "no pruning"
"""How the note begins that says why nothing was pruned."""
MOST_RATIO, MOST_SPEEDUP = 0.95, 100.0
_REMEDY = "write auto, off, a share of the channels such as 0.3 or 30%, or a speed such as 1.5x"


@dataclass(frozen=True, slots=True)
class Pruning:
    """How much is removed, and of which layers nothing is."""

    ratio: float = 0.0
    """Share of the channels that can be removed, 0 to 1; 0: none was asked for."""
    speedup: float = 0.0
    """Speedup of the whole model against the dense one; 0: none was asked for."""
    keep_layers: tuple[str, ...] = ()
    """Names of nodes, their outputs or their weights of which no channel is removed."""

    @property
    def is_auto(self) -> bool:
        """Whether measured time and accuracy decide how much is removed."""
        return not (self.ratio or self.speedup)

    def __str__(self) -> str:
        if self.ratio:
            return f"{self.ratio:.0%} of the channels that can be removed"
        return f"until {self.speedup:g}x" if self.speedup else "as far as it pays"


def parse_pruning(text: str, keep_layers: tuple[str, ...] = ()) -> Pruning | None:
    """Return what `--prune` asks for; None for `off`.

    Args:
        text: `auto`, `off`, a share of the channels from 0 to 0.95, or a speed above 1 with an `x` behind it.
        keep_layers: See `Pruning`.

    Raises:
        EdgeoptError: If it is none of them.
    """
    word = text.strip().lower()
    if word in (AUTO, OFF):
        return Pruning(keep_layers=keep_layers) if word == AUTO else None
    is_speedup = word.endswith("x")
    try:
        number = float(word[:-1]) / 100 if word.endswith("%") else float(word.removesuffix("x"))
    except ValueError:
        number = math.nan
    if is_speedup and 1 < number <= MOST_SPEEDUP:
        return Pruning(speedup=number, keep_layers=keep_layers)
    if not is_speedup and 0 < number <= MOST_RATIO:
        return Pruning(ratio=number, keep_layers=keep_layers)
    wrong = {True: f"a speed above 1 and up to {MOST_SPEEDUP:g}", False: f"a share above 0 and up to {MOST_RATIO:g}"}
    why = "is no amount of pruning" if math.isnan(number) else f"is not {wrong[is_speedup]}"
    raise EdgeoptError(f"--prune {short(text)} {why}", remedy=_REMEDY)
