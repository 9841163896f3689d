"""One bundle for each workload of a fleet, with what every device and target made of it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from edgeopt.errors import EdgeoptError
from edgeopt.verbs.bundle.combine import combine_bundles, size_of
from edgeopt.verbs.fleet.result import CellResult, FleetBundle, grouped

_BUNDLES = "bundles"


def write_bundles(cells: Sequence[CellResult], places: Path, folder: Path) -> tuple[FleetBundle, ...]:
    """Combine the bundles of the cells of each workload; what stands in the way of one is told, and ends nothing.

    Args:
        cells: All of the fleet.
        places: Folder of the cells' own folders.
        folder: Of the fleet's results.
    """
    written = list[FleetBundle]()
    for workload, own in grouped(cells, "workload").items():
        place = folder / _BUNDLES / workload
        made = [cell for cell in own if (places / cell.name / "bundle").is_dir()]
        if not made:
            shutil.rmtree(place, ignore_errors=True)
            continue
        try:
            bundle = combine_bundles(
                [places / cell.name for cell in made], place, devices=[cell.device for cell in made]
            )
        except EdgeoptError as error:
            shutil.rmtree(place, ignore_errors=True)  # one of an earlier run would be taken for this one's
            written.append(FleetBundle(workload, problem=error.problem))
            continue
        labels = tuple(each.label for each in (bundle, *bundle.others))
        written.append(FleetBundle(workload, place, labels, size_of(bundle)))
    return tuple(written)
