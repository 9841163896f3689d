"""Progress: how far, and how long yet."""

from __future__ import annotations

from edgeopt.cli._progress import Progress


def test_after_a_few_seconds_the_time_left_is_told(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Progress(clock=lambda: now[0]) as progress:
        for done, at_s in ((0, 100.0), (1, 101.0), (10, 110.0), (20, 120.0)):
            now[0] = at_s
            progress.progress("calibrate", done, 20)
        now[0] = 121.0
        progress.progress("evaluate", 1, 2)
    shown = [one.strip() for one in capsys.readouterr().err.split("\r")]
    assert shown[:5] == ["", "calibrate 0/20", "calibrate 1/20", "calibrate 10/20, 10 s left", "calibrate 20/20"]
    assert "evaluate 1/2" in shown
