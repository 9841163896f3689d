"""Work in parts under a time limit: what opens engines tells no pace, and work that does not fit ends early."""

from __future__ import annotations

import pytest

from edgeopt.system.processes import time_limit
from edgeopt.system.processes.time_limit import OutOfTime, limited, paced


@pytest.mark.parametrize(
    ("first_s", "each_s", "fits"),
    [(20.0, 1.0, True), (1.0, 20.0, True), (1.0, 40.0, False)],
    ids=["opening takes long", "four of them fit", "four do not fit"],
)
def test_the_parts_behind_the_first_tell_the_pace(monkeypatch, first_s, each_s, fits):
    clock, told = [0.0], list[int]()
    monkeypatch.setattr(time_limit, "monotonic", lambda: clock[0])
    with limited(100.0):
        heard = paced(told.append, 4)
        clock[0] += first_s
        heard(1)
        clock[0] += each_s
        if fits:
            heard(2)
        else:
            with pytest.raises(OutOfTime):
                heard(2)
    assert told == [1, 2]


def test_a_single_part_is_done_however_long_it_takes():
    with limited(0.0):
        paced(lambda _: None, 1)(1)
