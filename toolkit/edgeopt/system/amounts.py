"""Units for the end of work that is not in pieces: a listener shows it so."""

from __future__ import annotations


class Tenths(int):
    """The end of work that lasts so many tenths of a second."""


class Percent(int):
    """The end of work whose share is told: 100."""


def shown_amount(done: int, of: int) -> str:
    """Return how far work is: `3/20` pieces, `3 of 20 s` or `15 %`, as wide as it gets until the end."""
    if isinstance(of, Percent):
        return f"{done:>3} %"
    if isinstance(of, Tenths):
        most = f"{of / 10:.0f}"
        return f"{f'{done / 10:.0f}':>{len(most)}} of {most} s"
    return f"{done:>{len(str(int(of)))}}/{of}"
