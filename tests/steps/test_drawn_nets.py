"""Passes and INT8 forms over nets whose attributes are drawn, judged with the engine's optimizations off.

More of them: `benchmarks/graph_fuzz.py`.
"""

from __future__ import annotations

import pytest
from drawn_nets import KINDS, draw_net
from judged_nets import faults_of

FIRST = {"norm": 3, "resize": 3, "clip": 2, "slice": 2}
"""How many nets of a kind; of the others one."""


@pytest.mark.parametrize(("kind", "seed"), [(kind, seed) for kind in KINDS for seed in range(FIRST.get(kind, 1))])
def test_what_is_made_of_a_net_computes_the_same(kind: str, seed: int) -> None:
    net = draw_net(kind, seed)
    assert not list(faults_of(net, single_passes=seed == 0)), net.told
