"""The user chooses which inputs a bundle stores to test its numbers: the user's own, made-up ones, or none."""

from __future__ import annotations

import numpy as np
import pytest
from fixture_brief import briefly
from fixture_models import model, numbers

from edgeopt import Runtime, optimize
from edgeopt.graph.model import save_model
from edgeopt.runtime.bundle import read_bundle
from edgeopt.runtime.selftest import FILE, read_stored


@pytest.mark.parametrize("inputs", ["pictures", "synthetic", "off"])
def test_only_what_was_asked_for_leaves_with_the_bundle(tmp_path, inputs):
    net = model("net (float[1,3,8,8] x) => (float[1,4,6,6] y) { y = Conv(x, w) }", w=numbers(4, 3, 3, 3))
    save_model(net, tmp_path / "net.onnx")
    given = numbers(8, 3, 8, 8) * 20
    np.savez(tmp_path / "given.npz", x=given)
    with briefly():
        report = optimize(
            tmp_path / "net.onnx",
            target="cpu",
            out=tmp_path / "out",
            calib=str(tmp_path / "given.npz"),
            steps=("simplify",),
            threads=1,
            selftest=inputs,
        )
    bundle, told = read_bundle(report.bundle), " ".join(note.detail for note in report.notes)
    assert (bundle.selftest is None) == (inputs == "off")
    assert (report.bundle / FILE).exists() == (inputs != "off")
    if stored := read_stored(bundle):
        shipped = [any(np.array_equal(sample["x"][0], one) for one in given) for sample in stored.samples]
        assert shipped == [inputs == "pictures"] * 4
        assert ("made up" in told) == (inputs == "synthetic")
    else:
        assert "no test of its numbers: --selftest off" in told
    with Runtime.load(report.bundle, strict=True) as runtime:
        assert runtime.notes == ()
