"""Options of `run` for frames that keep coming."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgeopt.measurement.common_options import threads_option
from edgeopt.system.declared.options import FileUse, Syntax, option

STREAM, OUTPUT, DRIFT = "The stream", "Where answers go", "Drift"
"""Headings of the help."""


@dataclass(frozen=True)
class LiveOptions:
    """Options of a run on frames that keep coming."""

    fps: float | None = option(
        None,
        "Frames a second that come from a file, or are asked of a camera.",
        group=STREAM,
        syntax=Syntax.NUMBER,
        least=0,
        most=1000,
        above=True,
        shown="a camera's own; a file: as fast as it is answered",
    )
    """None: a camera's own rate, and every frame of a file."""
    budget_ms: float | None = option(
        None,
        "Time from a frame to its answer, such as 33ms: a gate.",
        "--budget",
        group=STREAM,
        syntax=Syntax.FRAME_BUDGET,
        shown="the bundle's, no gate",
    )
    """None: the bundle's own, which judges nothing."""
    max_miss_ratio: float = option(
        0.01, "Share of the frames that may be late or lost.", "--max-miss", group=STREAM, syntax=Syntax.SHARE
    )
    queue: str = option("latest", "Which frames wait while the model is busy: fifo, bounded:K or latest.", group=STREAM)
    degrade: bool = option(
        True,
        "Never skip frames or take a lighter model where frames are late.",
        "--no-degrade",
        group=STREAM,
        syntax=Syntax.FLAG,
        flag_value=False,
    )
    limit: int | None = option(None, "Stop after so many answers.", group=STREAM, syntax=Syntax.WHOLE, least=1)
    """Answers after which it ends."""
    save: Path | None = option(
        None,
        "Write the frames with their answers drawn: into a video (.mp4, .avi, .mkv, .mov), or a folder of pictures.",
        group=OUTPUT,
        syntax=Syntax.FILE,
        file_use=FileUse.WRITE,
    )
    """A video, or a folder for pictures."""
    view: bool = option(
        False,
        "Show the answers on a page of this machine; prints its address.",
        group=OUTPUT,
        syntax=Syntax.FLAG,
    )
    drift: str = option(
        "",
        "Watch whether frames are still like those of calibration (bundle), or of a file from --learn-drift.",
        group=DRIFT,
        file_use=FileUse.READ,
        shown="not watched",
    )
    """`bundle`, or the path of a sketch; empty: nothing is watched."""
    learn_drift: Path | None = option(
        None,
        "Write down what is usual in these frames, for --drift.",
        group=DRIFT,
        syntax=Syntax.FILE,
        file_use=FileUse.WRITE,
    )
    """A file for the sketch of the frames that go by."""
    false_alarms: float = option(
        1.0,
        "False alarms a week at most, where frames half a second apart are independent.",
        group=DRIFT,
        syntax=Syntax.NUMBER,
        least=0,
        above=True,
    )
    threads: int = threads_option(STREAM, "as measured")
    """Threads of each model; 0: as measured."""
    code: Path | None = None
    """The folder of the functions that a pipeline calls; they are run."""
    recipe: str | None = None
    """Recipe of a model as it is: shipped name or path; None: read from the model."""
    target: str | None = None
    """Target of a model as it is: shipped name or path; None: this processor."""
