"""A deployed model runs as it was measured: every way to it opens it as `optimize` did when it was timed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

from edgeopt import executors
from edgeopt.executors import SessionOptions
from edgeopt.measurement.frames.options import BenchOptions
from edgeopt.measurement.frames.setup import open_setup
from edgeopt.measurement.fresh_process import child
from edgeopt.measurement.fresh_process.start import fresh_request
from edgeopt.measurement.opening import threads as measured_threads
from edgeopt.measurement.opening.subject import open_subject
from edgeopt.measurement.turns.side_by_side import close, open_sides
from edgeopt.optimization.optimize import optimize
from edgeopt.runtime.bundle import read_bundle
from edgeopt.runtime.opening import opening_for, opening_from_json
from edgeopt.runtime.runtime import Runtime
from edgeopt.system.declared import registry
from edgeopt.system.declared.target import find_target
from edgeopt.system.machine import threads
from edgeopt.workloads.frames.guards import starts_of

ENTRIES = {"onnxruntime": ("session.intra_op.allow_spinning", "0"), "openvino": ("ENABLE_CPU_PINNING", "NO")}
"""An entry for each engine that is not its default."""


@pytest.fixture(params=["cpu", "openvino-cpu"])
def deployed(request, tmp_path, monkeypatch, brief):
    """Return the bundle of a run on an engine, how its model was opened last, and a list that goes on being filled.

    The engines are real, what they are asked is written down. The choice of threads, which a timing would make, is one;
    this machine seems to have three cores, so that one is no default.
    """
    target = find_target(request.param)
    engine = registry.load(executors, target.executor).EXECUTOR
    if reason := engine.why_unavailable():
        pytest.skip(reason)
    entry, value = ENTRIES[target.executor]
    profile = f"""name = "own"\ndevice = "cpu"\nexecutor = "{target.executor}"\ndescription = "of this test"
providers = {json.dumps(target.providers)}\nprecisions = ["fp32"]\n[options]\n"{entry}" = "{value}"\n"""
    (tmp_path / "own.toml").write_text(profile)
    opened: list[tuple[str, SessionOptions]] = []
    real = type(engine).open

    def written_down(self, source, options):
        data = source if isinstance(source, bytes) else source.read_bytes()
        opened.append((hashlib.sha256(data).hexdigest(), replace(options, cache_folder="")))
        return real(self, source, options)

    monkeypatch.setattr(type(engine), "open", written_down)
    monkeypatch.setattr(measured_threads, "choose_threads", lambda *_: measured_threads.ThreadUse(1))
    names = ("physical_cores", "usual_threads")
    cores = [(module, name) for module in (measured_threads, threads) for name in names] + [(threads, "logical_cores")]
    for module, name in cores:
        monkeypatch.setattr(module, name, lambda: 3)
    wishes = {"out": tmp_path / "o", "steps": ("simplify",)}
    report = optimize("digits_detector", target=str(tmp_path / "own.toml"), **wishes)
    bundle = read_bundle(report.bundle)
    measured = [options for sha256, options in opened if sha256 == bundle.artefacts[0].sha256][-1]
    opened.clear()
    return bundle, measured, opened


def test_every_way_to_a_bundle_opens_it_as_it_was_measured(deployed):
    bundle, measured, opened = deployed
    entry, value = ENTRIES[bundle.target.executor]
    assert (measured.threads, measured.precision, measured.entries[entry]) == (1, "fp32", value)
    folder, first = str(bundle.folder), bundle.artefacts[0]
    runtime = Runtime.load(folder)
    subject = open_subject(folder, target="cpu", recipe=None, threads=0)
    sides = open_sides([folder], target="cpu", recipe=None, threads=0)
    setup = open_setup(folder, target="cpu", recipe=None, options=BenchOptions())
    again = subject.open_again()[1]
    (start,) = starts_of(sides).values()
    request = json.loads(fresh_request(start.model, start.opening))
    child._run(request)  # what a fresh process of a cold start or of the peak memory does
    assert opened == [(first.sha256, measured)] * len(opened)
    assert len(opened) == 6
    assert opening_from_json(request["opening"]).executor == first.executor == runtime.opening.executor
    assert sides[0].subject.environment().facts["session.executor"].value == first.executor
    for session in (runtime.session, subject.session, again, setup.subject.session):
        session.close()
    close(sides)
    wished = open_subject(folder, target="cpu", recipe=None, threads=2)
    shared = open_subject(folder, target="cpu", recipe=None, threads=0, workers=2)
    assert (wished.threads, shared.threads) == (2, 1)
    alone = open_subject(folder, target="cpu", recipe="tensors", threads=0)
    assert (alone.recipe.name, alone.opening) == ("tensors", subject.opening), "arrays time the model alone"
    for one in (wished, shared, alone):
        one.session.close()


def test_a_model_is_opened_in_the_arithmetic_of_its_target_as_a_candidate_is():
    npu = opening_for(find_target("intel-npu"), find_target("intel-npu").float_precision, 1)
    assert (npu.executor, npu.options.providers, npu.options.precision) == ("openvino", ("NPU",), "fp16")


def test_an_opening_reaches_another_process_whole():
    target = find_target("qualcomm-htp-v73")
    told = opening_for(target, "w8a8", 4, "cache").with_entries({"one": "more"})
    assert opening_from_json(json.loads(json.dumps(told.to_json()))) == told
