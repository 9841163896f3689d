"""What another package prints is dropped; what other threads print meanwhile is shown."""

from __future__ import annotations

import sys
import threading

import pytest

from edgeopt.system.processes.quiet import quiet_thread


def test_one_thread_is_quiet_and_another_is_heard(capsys: pytest.CaptureFixture[str]) -> None:
    with quiet_thread():
        print("dropped")
        print("dropped", file=sys.stderr)
        other = threading.Thread(target=lambda: print("heard", file=sys.stderr))
        other.start()
        other.join()
    print("after")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("after\n", "heard\n")


def test_two_that_overlap_leave_both_threads_heard(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # put back afterwards
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    inside, leave = threading.Event(), threading.Event()

    def second() -> None:
        with quiet_thread():
            print("dropped")
            inside.set()
            leave.wait(10)
        print("second")

    other = threading.Thread(target=second)
    with quiet_thread():
        other.start()
        assert inside.wait(10)
    leave.set()
    other.join()
    print("first")
    assert capsys.readouterr().out.splitlines() == ["second", "first"]
