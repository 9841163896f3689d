"""A neighbour on the same machine: it does a fixed piece of work again and again when told.

Run by `neighbour` as a module. Each line of input is a number of seconds; each line of
output is how often the work was done and how many nanoseconds that took.
"""

from __future__ import annotations

import hashlib
import sys
import time

_WORK = bytes(256 * 1024)  # the work of `anchor`: one core, no memory traffic


def main() -> int:
    """Work when told until the input ends."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        begun = time.perf_counter_ns()
        end, done = begun + round(float(line) * 1e9), 0
        while time.perf_counter_ns() < end:
            hashlib.sha256(_WORK).digest()
            done += 1
        sys.stdout.write(f"{done} {time.perf_counter_ns() - begun}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
