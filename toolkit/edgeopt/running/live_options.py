"""Options of `run` for frames that keep coming."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from edgeopt.measurement.common_options import MAX_MISS_RATIO, QUEUES, threads_option
from edgeopt.system.declared.options import FileUse, OptionGroup, Syntax, option

STREAM = OptionGroup("stream", "The stream", "rate, budget, queue, end")
OUTPUT = OptionGroup("answers", "Where answers go", "a video, pictures, a web page")
DRIFT = OptionGroup("drift", "Drift", "whether frames are still like those of calibration")


@dataclass(frozen=True)
class LiveOptions:
    """Options of a run on frames that keep coming."""

    fps: float | None = option(
        None,
        "Frames a second: the rate at which a file is played, or that a camera is asked for.",
        group=STREAM,
        common=True,
        syntax=Syntax.NUMBER,
        least=0.001,
        most=1000,
        shown="the camera's own; a file as fast as it is answered",
    )
    """None: a camera's own rate, and every frame of a file."""
    budget_ms: float | None = option(
        None,
        "Time from a frame to its answer, such as 33ms; exit code 2 if it is missed.",
        "--budget",
        group=STREAM,
        common=True,
        syntax=Syntax.FRAME_BUDGET,
        shown="the bundle's, without an effect on the exit code",
    )
    """None: the bundle's own, which judges nothing."""
    max_miss_ratio: float = option(
        MAX_MISS_RATIO,
        "Share of the frames that may be late or lost.",
        "--max-miss",
        group=STREAM,
        syntax=Syntax.SHARE,
    )
    queue: str = option("latest", f"{QUEUES}.", group=STREAM)
    degrade: bool = option(
        True,
        "Never skip frames or use a lighter model when frames are late.",
        "--no-degrade",
        group=STREAM,
        syntax=Syntax.FLAG,
        flag_value=False,
    )
    limit: int | None = option(None, "Stop after this many answers.", group=STREAM, syntax=Syntax.WHOLE, least=1)
    """Answers after which it ends."""
    save: Path | None = option(
        None,
        "Write the frames with the answers drawn on them: a video (.mp4, .avi, .mkv, .mov) or a folder of pictures.",
        group=OUTPUT,
        common=True,
        syntax=Syntax.FILE,
        file_use=FileUse.WRITE,
    )
    """A video, or a folder for pictures."""
    view: bool = option(
        False,
        "Show the answers in a web page; its address on this machine is printed.",
        group=OUTPUT,
        common=True,
        syntax=Syntax.FLAG,
    )
    drift: str = option(
        "",
        "Watch whether the frames are still like those of calibration (the word bundle), or like those of a file from "
        "--learn-drift.",
        group=DRIFT,
        metavar="bundle|FILE",
        file_use=FileUse.READ,
        shown="not watched",
    )
    """`bundle`, or the path of a sketch; empty: nothing is watched."""
    learn_drift: Path | None = option(
        None,
        "Write into this file what these frames are like, for --drift.",
        group=DRIFT,
        syntax=Syntax.FILE,
        file_use=FileUse.WRITE,
    )
    """A file for the sketch of the frames that go by."""
    false_alarms: float = option(
        1.0,
        "Most false alarms a week, if frames half a second apart are independent.",
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


class LiveWishes(TypedDict, total=False):
    """Keyword options of `run` on frames; `LiveOptions` says what each means, and its default."""

    fps: float | None
    budget_ms: float | None
    max_miss_ratio: float
    queue: str
    degrade: bool
    limit: int | None
    save: str | Path | None
    view: bool
    drift: str
    learn_drift: str | Path | None
    false_alarms: float
    threads: int
    code: str | Path | None
    recipe: str | None
    target: str | None
