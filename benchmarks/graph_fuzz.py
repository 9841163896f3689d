"""Do passes and INT8 forms compute the same, whatever the attributes of an op are?

Nets are drawn from seeds (`tests/fixtures/drawn_nets.py`). What `simplify` and `fuse` make of one, and each pass alone,
must answer as the net does with the engine's optimizations off; each INT8 form may be off by what rounding takes. A
pass that was left out since its result differed counts too. A seed that fails is told with the command that repeats it.

    python benchmarks/graph_fuzz.py --minutes 30
    python benchmarks/graph_fuzz.py --kind resize --seed 4711
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fixtures"))
from drawn_nets import KINDS, draw_net
from judged_nets import faults_of


def main() -> int:
    """Draw nets until the time is over, and return how many were wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--kind", choices=sorted(KINDS), action="append", help="of these nets only")
    parser.add_argument("--seed", type=int, help="one net of each kind")
    parser.add_argument("--first", type=int, default=0, help="the seed to begin with")
    asked = parser.parse_args()
    ends, seed, wrong, seen = time.monotonic() + 60 * asked.minutes, asked.first, Counter[str](), Counter[str]()
    while time.monotonic() < ends:
        for kind in asked.kind or KINDS:
            number = seed if asked.seed is None else asked.seed
            net = draw_net(kind, number)
            seen[kind] += 1
            for fault in faults_of(net):
                wrong[kind] += 1
                print(f"--kind {kind} --seed {number}: {fault}\n    {net.told}", flush=True)
        if asked.seed is not None:
            break
        seed += 1
    print(", ".join(f"{kind} {count} nets, {wrong[kind]} wrong" for kind, count in seen.items()))
    return min(sum(wrong.values()), 100)


if __name__ == "__main__":
    sys.exit(main())
