"""A command of edgeopt that ends when the worker that started it does, however that ends.

    python -m edgeopt.verbs.fleet.child WORDS...

The worker holds the standard input open. Where it is closed, nobody waits for the command any more: it is asked to end
as by Ctrl-C, so that its device is free for whoever takes the cell up.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading

_GRACE_S = 30.0
"""Seconds that a command has to leave what it has; then it ends at once."""


def _end_with(stream: int) -> None:
    while os.read(stream, 1):
        continue
    threading.Timer(_GRACE_S, os._exit, (1,)).start()
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Run the command of this program's arguments."""
    held = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    threading.Thread(target=_end_with, args=(held,), daemon=True).start()
    runpy.run_module("edgeopt", run_name="__main__")


if __name__ == "__main__":
    main()
    sys.exit()
