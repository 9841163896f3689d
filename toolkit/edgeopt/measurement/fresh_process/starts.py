"""What a model costs a fresh process: the time to its first answer, and the most memory it ever holds.

Several models take turns, process by process, so that a busy machine slows all alike.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.fresh_process.cold_start import fresh_request, run_cold_start
from edgeopt.measurement.fresh_process.page_cache import PageCache
from edgeopt.measurement.fresh_process.start import child_environment
from edgeopt.runtime.opening import Opening

_LONGEST_S = 600.0


@dataclass(frozen=True, slots=True)
class Start:
    """A model and how it is opened."""

    model: Path
    opening: Opening


Tell = Callable[[int, int], None]
"""(done, of)"""


def time_first_answers(starts: Mapping[str, Start], repeats: int, tell: Tell | None = None) -> dict[str, list[int]]:
    """Return nanoseconds from starting a process to its first answer, warm page cache, `repeats` for each.

    Raises:
        EdgeoptError: If a process fails.
    """

    def once(start: Start) -> int:
        found = run_cold_start(
            start.model,
            start.opening,
            repeats=1,
            page_caches=(PageCache.WARM,),
            with_optimized=False,
        )
        return found.runs[0].took_ns("to_first")

    return _in_turns(starts, repeats, once, tell)


def measure_peaks(starts: Mapping[str, Start], repeats: int, tell: Tell | None = None) -> dict[str, list[int]]:
    """Return the peak resident bytes of processes that open the model and run it twice, `repeats` for each.

    Lists are empty where the system keeps no peak.

    Raises:
        EdgeoptError: If a process fails.
    """
    found = _in_turns(starts, repeats, _peak_bytes, tell)
    return {name: [value for value in values if value] for name, values in found.items()}


def _in_turns(
    starts: Mapping[str, Start], repeats: int, once: Callable[[Start], int], tell: Tell | None
) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {name: [] for name in starts}
    for turn in range(repeats):
        for name in list(starts)[:: 1 if turn % 2 == 0 else -1]:
            found[name].append(once(starts[name]))
        if tell:
            tell(turn + 1, repeats)
    return found


def _peak_bytes(start: Start) -> int:
    command = [
        sys.executable,
        "-m",
        "edgeopt.measurement.fresh_process.peak_child",
        fresh_request(start.model, start.opening),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LONGEST_S, env=child_environment(), check=False
        )
    except subprocess.TimeoutExpired as error:
        raise EdgeoptError(
            f"a fresh process did not finish within {_LONGEST_S:.0f} s",
            remedy="leave it out with --skip memory; edgeopt bench shows whether the first run ever ends",
        ) from error
    return parse_peak(done.stdout, done.stderr, done.returncode)


def parse_peak(stdout: str, stderr: str, code: int) -> int:
    """Return the peak that a child told, 0 where its system keeps none.

    Raises:
        EdgeoptError: If the child failed.
    """
    answers = [json.loads(line) for line in stdout.splitlines() if line.startswith("{")]
    problem = next((one["error"] for one in answers if "error" in one), None)
    if problem is None and answers and "peak_bytes" in answers[-1]:
        return int(answers[-1]["peak_bytes"] or 0)
    reason = problem or (stderr.strip().splitlines() or [f"it ended with code {code}"])[-1]
    raise EdgeoptError(f"a fresh process could not run the model: {reason}", remedy="run edgeopt doctor")
