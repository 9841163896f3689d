"""An answer as it is written, and a line below it that tells how fast: in one terminal, or each where it belongs."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from edgeopt.cli._status import StatusLine
from edgeopt.system.text import plural, printable, shorten

if TYPE_CHECKING:
    from edgeopt.runtime.decoding.generation import Account

_MAKE_ROOM, _BELOW, _BACK, _ERASE = "\x1bD\x1bM", "\x1b7\x1b[B\r", "\x1b8", "\x1b[J"
"""One line down and up again, which scrolls at the bottom; remember the place and go below; return; clear what is left.

Source: ECMA-48 and DEC's VT100, which terminals of Linux, macOS and Windows follow.
"""


class AnswerLine:
    """Text on the standard output, a line of figures on the standard error, each only where somebody looks.

    Where both are one terminal the line stands below the text, which goes on above it; a terminal that knows no such
    codes shows the text alone.
    """

    def __init__(self, out: TextIO | None = None, error: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._status = StatusLine(stream=error)
        both = self._status.is_live and self._out.isatty()
        knows = os.environ.get("TERM", "") not in ("", "dumb") and os.name == "posix"
        self._is_below, self._is_apart = both and knows, self._status.is_live and not both

    def __enter__(self) -> AnswerLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_below:
            self._out.write(_ERASE)
            self._out.flush()
        self._status.clear()

    def write(self, text: str, account: Account) -> None:
        """Show more of the answer, and what it took so far."""
        shown = "\n".join(printable(line) for line in text.split("\n"))
        line = shorten(answer_line(account), self._status.width)
        if self._is_below:
            self._out.write(f"{_ERASE}{shown}{_MAKE_ROOM}{_BELOW}{line}{_BACK}")
        else:
            self._out.write(shown)
        self._out.flush()
        if self._is_apart:
            self._status.show(line)


def answer_line(account: Account) -> str:
    """Return tokens, their rate after the first one, and the time to that, of an answer on its way."""
    count = len(account.token_at_ns)
    parts = [plural(count, "token")]
    if account.tpot_ms:
        parts.append(f"{1e3 / account.tpot_ms:.0f} tokens/s")
    if account.ttft_ms is not None:
        parts.append(f"TTFT {account.ttft_ms:.0f} ms" if account.ttft_ms >= 10 else f"TTFT {account.ttft_ms:.1f} ms")
    return "  ".join(parts)
