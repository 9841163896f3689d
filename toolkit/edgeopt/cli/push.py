"""Put a bundle on a device, with a way back."""

from __future__ import annotations

from pathlib import Path

import click

from edgeopt.cli._options import TERMINAL, exit_codes, format_option
from edgeopt.cli._output import show
from edgeopt.cli._progress import Progress
from edgeopt.cli._remote import DeviceCommand, device_option
from edgeopt.cli._values import Duration, FilePath, FrameBudget, ShareValue
from edgeopt.errors import EXIT_MISSED, EdgeoptError
from edgeopt.measurement.common_options import LABEL_KINDS, MAX_MISS_RATIO
from edgeopt.system.declared.options import FileUse


class _Read(click.Option):
    """An option that names a file or folder that is read."""

    file_use = FileUse.READ


@click.command(cls=DeviceCommand, params=[device_option()])
@click.argument("bundle", required=False, type=FilePath())
@click.option(
    "--to",
    "place",
    required=True,
    metavar="FOLDER",
    help="Folder on the device, as an absolute path such as /opt/door.",
)
@click.option(
    "--frames",
    cls=_Read,
    metavar="SOURCE",
    show_default="inputs that the running bundle stores",
    help="Frames that both bundles answer: a folder, a video, a camera's number or an address, as the device sees it.",
)
@click.option("--eval", "labels", cls=_Read, type=FilePath(), help=f"Labels that judge both: {LABEL_KINDS}.")
@click.option(
    "--budget",
    type=FrameBudget(),
    show_default="1.25 times that of the running bundle",
    help="Time that a frame may take on the device, such as 33ms.",
)
@click.option(
    "--max-miss",
    type=ShareValue(),
    default=MAX_MISS_RATIO,
    show_default=f"{MAX_MISS_RATIO:.0%}",
    help="Share of the frames that may miss the budget.",
)
@click.option(
    "--least-agreement",
    type=ShareValue(),
    show_default="the recipe's",
    help="Least agreement with the running bundle's answers.",
)
@click.option(
    "--max-drop", type=ShareValue(), show_default="the recipe's", help="Accuracy that may be lost on the labels."
)
@click.option("--seconds", type=Duration("s"), default="20s", show_default=True, help="How long both are measured.")
@click.option(
    "--trust", cls=_Read, type=FilePath(), help="Public key with which every release must be signed from now on."
)
@click.option("--back", is_flag=True, help="Go back to the version that ran before.")
@format_option
@click.pass_context
@exit_codes("the bundle runs there", "it was refused, and the one before runs on", last=EXIT_MISSED)
def push(
    ctx: click.Context,
    *,
    bundle: Path | None,
    place: str,
    frames: str | None,
    labels: Path | None,
    budget: float | None,
    max_miss: float,
    least_agreement: float | None,
    max_drop: float | None,
    seconds: float,
    trust: Path | None,
    back: bool,
    form: str,
) -> None:
    """Put BUNDLE into a folder, here or on the device of --on, if it is proven.

    It is copied beside the running one, opened, and compared with it in turns: answers, times, and accuracy where
    there are labels. Then the link FOLDER/current leads to it, in one step; an app loads that. What misses the budget
    or answers otherwise is refused, and the running one stays. Signed releases: edgeopt sign.
    """
    from edgeopt.verbs.rollout.canary import CanaryOptions
    from edgeopt.verbs.rollout.place import whole_place
    from edgeopt.verbs.rollout.push import go_back, push
    from edgeopt.verbs.rollout.summary import summarize

    folder = whole_place(place)
    if back == (bundle is not None):
        raise EdgeoptError("push takes a bundle, or --back", remedy="name one of the two")
    if bundle is None:
        show(summarize(go_back(folder)), form)
        return
    options = CanaryOptions(frames, labels, budget, max_miss, least_agreement, max_drop, seconds)
    with Progress(quiet=form != TERMINAL) as progress:
        pushed = push(bundle, folder, options=options, trust=trust, tell=progress.progress)
    show(summarize(pushed), form)
    ctx.exit(pushed.exit_code)


COMMAND = push
