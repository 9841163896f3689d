"""The standard streams where nobody reads them, they are closed, or the disk behind them is full.

Whoever reads the standard output may have read enough (`edgeopt check ... | head -1`): then the command goes on, and
its exit code is what it would have been. What cannot be written for another reason is an error. The standard error only
tells how far work is: work never ends because of it.
"""

from __future__ import annotations

import errno
import os
import select
import sys
from contextlib import suppress
from typing import IO, Any

NOWHERE_TO_WRITE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of the system where a disk, a quota or a file is full."""
_STANDARD = ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w"))


def open_closed_streams() -> None:
    """Open what is closed of the standard streams on the null device.

    Otherwise the next file that is opened takes the number of a closed one, and whatever a library prints lands in it.
    """
    for number, name, mode in _STANDARD:
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, which is this one
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115, for the whole life


def write_if_possible(stream: IO[str], text: str) -> None:
    """Write a text that may be lost."""
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        give_up(stream)


def give_up(stream: IO[Any]) -> None:
    """Send what a stream still holds, and all that comes, to the null device: Python flushes it again at the end."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def is_reader_gone() -> bool:
    """Return whether nobody reads the standard output any more; where that cannot be asked it is taken for granted."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
    except (AttributeError, OSError, ValueError):  # Windows has no poll, and a test no file
        return True
    return any(event & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, event in poll.poll(0))
