"""Whether the stages add up to the frame, and which stage is to blame for slow frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edgeopt.measurement.samples import Samples
from edgeopt.system.order_statistic import order_statistic

_TOLERANCE_RATIO = 0.02
_TOLERANCE_NS = 50_000


@dataclass(frozen=True, slots=True)
class Attribution:
    """Stages and overhead against the same inputs run without marks."""

    valid: bool
    residual_ns: float
    """Median, over the inputs, of the marked minus the unmarked service time. Above zero the marks cost time; far below
    it the machine became faster between the two."""
    tolerance_ns: float
    n: int
    """Inputs that were run both ways."""

    def __str__(self) -> str:
        cost, allowed = f"{abs(self.residual_ns) / 1e3:.0f} us a frame", f"{self.tolerance_ns / 1e3:.0f} allowed"
        if self.valid or self.residual_ns >= 0:
            return f"reading the clock between stages costs {cost if self.residual_ns > 0 else 'nothing'}, {allowed}"
        return f"frames with marks took {cost} less than those without, which only the machine can do; {allowed}"


@dataclass(frozen=True, slots=True)
class StageShare:
    """One stage's share of all frames, and of the slow ones."""

    mean_ratio: float
    tail_ratio: float
    """Share of the frames at or above the tail quantile."""


def check_attribution(samples: Samples) -> Attribution:
    """Compare stages plus overhead with the same inputs run unmarked: at most max(2 %, 50 us) apart.

    Only the rows whose input ran both ways count, and warm-up does not.

    Args:
        samples: With `wall_ns`; without any pair the attribution is invalid, residual 0.
    """
    rows = samples.steady()
    if rows.wall_ns is None or rows.wall_row is None or not len(rows.wall_ns):
        return Attribution(valid=False, residual_ns=0.0, tolerance_ns=0.0, n=0)
    marked = (rows.times_ns.sum(axis=1) + rows.overhead_ns)[rows.wall_row]
    # by pairs: pictures differ in their work, and a machine that drifts moves both of a pair
    residual = float(np.median(marked - rows.wall_ns))
    tolerance = max(_TOLERANCE_RATIO * float(np.median(rows.wall_ns)), _TOLERANCE_NS)
    return Attribution(abs(residual) <= tolerance, residual, tolerance, len(rows.wall_ns))


def share_stages(samples: Samples) -> Mapping[str, StageShare]:
    """Return the share of each stage and of `overhead`, over served frames after warm-up.

    Args:
        samples: Any run; without frames the mapping is empty.
    """
    rows = samples.steady().served()
    if not len(rows) or not rows.frame_ns.any():
        return {}
    response = rows.response_ns
    slow = response >= order_statistic(np.sort(response), 0.99)
    parts = {name: rows.stage(name) for name in rows.stages} | {"overhead": rows.overhead_ns}
    return {
        name: StageShare(_share(part.sum(), rows.frame_ns.sum()), _share(part[slow].sum(), rows.frame_ns[slow].sum()))
        for name, part in parts.items()
    }


def _share(part: np.int64, whole: np.int64) -> float:
    return float(part / whole) if whole else 0.0
