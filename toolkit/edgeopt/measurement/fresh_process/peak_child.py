"""A fresh process that opens a model, runs it twice and says the most memory it ever held.

Run by `starts` as a module with a request, the request being `cold_child`'s; the last
line of JSON is the answer.
"""

from __future__ import annotations

import json
import sys

from edgeopt.measurement.fresh_process import cold_child


def main() -> int:
    """Do what the request in the arguments says; return the exit code."""
    code = cold_child.main()
    from edgeopt.measurement.resources.memory import (
        peak_rss_bytes,  # after the run: its imports cost memory of their own
    )

    sys.stdout.write(json.dumps({"peak_bytes": peak_rss_bytes()}) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
