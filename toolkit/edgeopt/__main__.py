"""The command `edgeopt`, also as `python -m edgeopt`."""

from __future__ import annotations

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # before anything can import onnxruntime


def main() -> None:
    """Run the command line."""
    from edgeopt.cli._streams import open_closed_streams

    open_closed_streams()
    from edgeopt.cli import cli
    from edgeopt.system.interrupts import hear_termination

    hear_termination()
    cli(prog_name="edgeopt")


if __name__ == "__main__":
    main()
