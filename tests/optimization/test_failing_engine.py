"""An engine whose code fails costs its own candidates, and no other engine's."""

from __future__ import annotations

from types import SimpleNamespace

from edgeopt.errors import NoteKind
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.optimization.candidates import other_engines
from edgeopt.steps._context import Engine
from edgeopt.system.declared.target import find_target


def test_the_engines_behind_one_that_fails_are_tried(monkeypatch):
    engines = [Engine(find_target(name), EXECUTOR, 1) for name in ("cpu-x86-vnni", "openvino-cpu", "litert-cpu")]
    context = SimpleNamespace(engine=engines[0], alternatives=engines[1:], notes=[], ends_at=float("inf"))
    listener, candidates = SimpleNamespace(say=lambda _: None), [SimpleNamespace(name="fuse")]
    run = SimpleNamespace(context=context, replay=None, candidates=candidates, listener=listener)
    tried = list[str]()

    def offer(_run, engine, *_):
        if engine is engines[1]:
            raise ValueError("no tensor of texts")
        tried.append(engine.target.name)

    monkeypatch.setattr(other_engines, "_makers", lambda *_: {})
    for name in ("_offer_unsearched", "_offer_integers"):
        monkeypatch.setattr(other_engines, name, offer)
    rival = SimpleNamespace(model=None, candidate=None)
    other_engines.offer_engines(run, rival, rival)
    assert tried == ["cpu-x86-vnni", "litert-cpu"] * 2
    failed = "failed after fuse: ValueError: no tensor of texts"
    assert [(note.kind, note.detail) for note in context.notes] == [
        (NoteKind.WARNING, f"what openvino-cpu runs without a search {failed}"),
        (NoteKind.WARNING, f"INT8 on openvino-cpu {failed}"),
    ]
