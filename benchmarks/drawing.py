"""The cost of drawing a token: sorting all places, as it was, against `Chooser`, in processor time.

    python benchmarks/drawing.py --rounds 60

Logits are normal numbers of a given standard deviation: 8 is about as peaked as a trained model's, 1 is flat. Each
round draws from the same logits in the order old, new, new, old; both must draw the same token.
"""

from __future__ import annotations

import argparse
from time import thread_time_ns

import numpy as np
from numpy.typing import NDArray

from edgeopt.runtime.decoding.sampling import Chooser, Sampling
from edgeopt.system.machine.environment import read_environment

WISHES: dict[str, dict[str, float]] = {"all tokens": {}, "top_k 40": {"top_k": 40}, "top_p 0.9": {"top_p": 0.9}}


class SortingChooser(Chooser):
    """Sorts the places of all logits."""

    def _drawn(self, known: NDArray[np.float32]) -> int:
        sampling, scaled = self._sampling, known.astype(np.float64)
        scaled = (scaled - scaled.max()) / sampling.temperature
        order = np.argsort(-scaled, kind="stable")[: sampling.top_k or len(scaled)]
        shares = np.exp(scaled[order] - scaled[order[0]])
        shares /= shares.sum()
        kept = int(np.searchsorted(np.cumsum(shares), sampling.top_p)) + 1
        kept = min(kept, int(np.count_nonzero(shares >= sampling.min_p * shares[0])))
        kept = min(kept, int(np.count_nonzero(shares)))
        shares = shares[:kept] / shares[:kept].sum()
        drawn = int(np.searchsorted(np.cumsum(shares), self._chance.random(), side="right"))
        return int(order[min(drawn, len(shares) - 1)])


def compare(size: int, spread: float, wish: dict[str, float], rounds: int) -> tuple[float, float, float, float]:
    """Return medians in milliseconds, of sorting all places and of `Chooser`, and the ratio's quartiles."""
    sampling, rng = Sampling(temperature=1.0, seed=1, **wish), np.random.default_rng(7)  # type: ignore[arg-type]
    old, new = SortingChooser(sampling), Chooser(sampling)
    times: dict[Chooser, list[int]] = {old: [], new: []}
    for number in range(rounds + 3):
        logits = (spread * rng.standard_normal(size)).astype(np.float32)
        drawn = dict[Chooser, list[int]]()
        for chooser in (old, new, new, old):
            begun = thread_time_ns()
            token = chooser.choose(logits, ())
            spent = thread_time_ns() - begun
            drawn.setdefault(chooser, []).append(token)
            if number >= 3:  # memory is warm
                times[chooser].append(spent)
        if drawn[old] != drawn[new]:
            raise SystemExit(f"{size}, {spread}, {wish}: drew {drawn[old]} and {drawn[new]}")
    pairs = [np.reshape(times[chooser], (-1, 2)).sum(axis=1) for chooser in (old, new)]
    low, high = np.percentile(pairs[0] / pairs[1], [25, 75])
    return float(np.median(times[old])) / 1e6, float(np.median(times[new])) / 1e6, float(low), float(high)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="draws of each, twice")
    parser.add_argument("--tokens", type=int, nargs="*", default=[49_152, 131_072], help="sizes of vocabularies")
    given = parser.parse_args()
    rounds = given.rounds
    print(f"{read_environment().cpu}, NumPy {np.__version__}, {rounds} rounds, medians of processor time\n")
    print("| tokens | logits | drawn from | all places sorted | now | ratio, quartiles |\n|---|---|---|---|---|---|")
    for size in given.tokens:
        for name, spread in (("peaked (8)", 8.0), ("flat (1)", 1.0)):
            for wish, numbers in WISHES.items():
                old, new, low, high = compare(size, spread, numbers, rounds)
                ratio = f"{old / new:.1f}x [{low:.1f}, {high:.1f}]"
                print(f"| {size:,} | {name} | {wish} | {old:.2f} ms | {new:.2f} ms | {ratio} |")


if __name__ == "__main__":
    main()
