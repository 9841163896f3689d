"""The command `edgeopt`, also as `python -m edgeopt`."""

from __future__ import annotations

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # before anything can import onnxruntime
os.environ.setdefault("OPENCV_LOG_LEVEL", "SILENT")  # before cv2: what fails is told in edgeopt's own words
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")  # FFmpeg's number for quiet


def main() -> None:
    """Run the command line."""
    from edgeopt.cli._streams import open_closed_streams
    from edgeopt.system.processes.quiet import take_standard_error

    open_closed_streams()
    take_standard_error()
    from edgeopt.cli import cli
    from edgeopt.system.processes.interrupts import hear_termination

    hear_termination()
    cli(prog_name="edgeopt")


if __name__ == "__main__":
    main()
