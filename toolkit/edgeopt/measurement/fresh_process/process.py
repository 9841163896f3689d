"""Starting a fresh process of this package, and its answer.

The modules whose processes prove speeds import this file, and it imports no onnx: each process would do so again.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

from edgeopt.errors import EdgeoptError
from edgeopt.system.processes.worker import module_command, run_to_end


def run_child(module: str, request: str, *, longest_s: float, remedy: str) -> dict[str, Any]:
    """Run a module of this package in a fresh process and return its answer, the last line of JSON that it prints.

    Args:
        module: Below `edgeopt.measurement`.
        request: Its one argument.
        longest_s: The longest that it may take.
        remedy: What to do where it takes longer, or dies.

    Raises:
        EdgeoptError: If it does not finish in time, dies, or answers with an `error`.
    """
    command = module_command(f"edgeopt.measurement.{module}", request)
    try:
        done = run_to_end(command, timeout_s=longest_s)
    except subprocess.TimeoutExpired as error:
        raise EdgeoptError(f"a fresh process did not finish within {longest_s:.0f} s", remedy=remedy) from error
    return parse_answer(done.stdout, done.stderr, done.returncode, remedy)


def parse_answer(stdout: str, stderr: str, code: int, remedy: str) -> dict[str, Any]:
    """Return the last line of JSON; an engine may print lines of its own before it.

    Raises:
        EdgeoptError: If there is none, or it tells an error.
    """
    lines = [line for line in stdout.splitlines() if line.startswith("{")]
    answer: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    if "error" in answer:
        raise EdgeoptError(f"a fresh process failed: {answer['error']}", remedy=answer.get("remedy") or remedy)
    if code or not lines:
        last = (stderr.strip().splitlines() or ["it wrote nothing"])[-1]
        raise EdgeoptError(f"a fresh process ended with code {code}: {last}", remedy=remedy)
    return answer
