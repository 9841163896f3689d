"""Sessions that take turns leave their cores when a run is over."""

from __future__ import annotations

from edgeopt.executors import SessionOptions
from edgeopt.runtime.opening import Opening

SPINNING = "session.force_spinning_stop"


def test_a_session_beside_others_waits_in_no_loop_unless_that_was_asked_for():
    plain = Opening("onnxruntime", SessionOptions(("CPUExecutionProvider",), 2))
    assert plain.sharing == {SPINNING: "1"}
    asked = plain.with_entries({SPINNING: "0"})
    assert asked.sharing == {}
    assert asked.with_entries(asked.sharing).options.entries == {SPINNING: "0"}


def test_an_engine_without_such_an_entry_opens_as_it_is():
    assert Opening("null", SessionOptions()).sharing == {}
