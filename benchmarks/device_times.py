"""How far predictions from a device's times are off on real models: predicted beside measured, on one machine.

    python benchmarks/device_times.py squeezenet_224.onnx yolox_nano_416.onnx --threads 1

Each model is predicted from a table of all kinds of layers, none of which are its own, and from one of its own layers
in several widths. It is then measured whole, as it is and with three quarters of its channels, in float and as the
first INT8 form by the target's rules.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeopt.optimization.candidates.engines import open_engine
from edgeopt.runtime.devices.availability import find_device
from edgeopt.steps._device_times.prediction import Predictor, form_layers_ms, speed_between
from edgeopt.system.declared.device_times import DeviceTimes, read_device_times
from edgeopt.system.machine.processor import cpu_name
from edgeopt.verbs.device_profile.material import ProfileMaterial
from edgeopt.verbs.device_profile.measure import INTEGERS, profile_network
from edgeopt.verbs.device_profile.profile import _opened, profile_device

_STEP = 16
"""Channels of a thinned model are multiples of it."""


@dataclass(frozen=True)
class Case:
    """One form of a model, measured."""

    name: str
    precision: str
    whole_ms: float
    layers: Any


def predicted(case: Case, times: DeviceTimes, target: str) -> tuple[Predictor, list[float]]:
    """Return what predicts a case, and the milliseconds of its layers."""
    floats = Predictor(times.of(target, "fp32"))
    if case.precision != "fp32":
        integers = Predictor(times.of(target, case.precision))
        return integers, form_layers_ms(case.layers, integers, floats)
    return floats, [floats.ms(layer.features) for layer in case.layers]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", type=Path, help="a table of all layers that was made here before")
    options = parser.parse_args()
    target = find_device("cpu")
    engine = open_engine(target, options.threads)
    print(f"{cpu_name()}, {options.threads} thread(s), {target.name}")
    with tempfile.TemporaryDirectory() as folder:
        general = options.table or Path(folder) / "all.times.json"
        if options.table is None:
            profile_device(target="cpu", threads=options.threads, out=general)
        for path in options.models:
            own = Path(folder) / f"{path.stem}.times.json"
            profile_device([path], target="cpu", threads=options.threads, out=own, only_models=True)
            model = _opened(path, {})
            _, _, thinned, *_ = ProfileMaterial((), (), [model]).models(_STEP)
            forms = {"whole": model, "3/4 of the channels": thinned}
            cases = list[Case]()
            for name, form in forms.items():
                for precision in ("fp32", next(each for each in target.precisions if each.startswith(INTEGERS))):
                    network = profile_network(form, engine, precision)
                    cases.append(Case(name, precision, network.whole_ms, network.form or network.layers))
            for title, file in (("all layers but its own", general), ("its own layers", own)):
                times = read_device_times(file)
                first, first_ms = predicted(cases[0], times, target.name)
                for case in cases:
                    predictor, layers_ms = predicted(case, times, target.name)
                    time = predictor.model_time(layers_ms)
                    ratio = math.fsum(first_ms) / math.fsum(layers_ms)
                    same = case.precision == cases[0].precision
                    speed = predictor.speed_of_thinner(ratio) if same else speed_between(first, predictor, ratio)
                    print(
                        f"{path.stem:<18} {title:<23} {case.name:<20} {case.precision:<5}"
                        f" predicted {time.ms:6.3f} ms [{time.low_ms:.3f}, {time.high_ms:.3f}]"
                        f" measured {case.whole_ms:6.3f} ({case.whole_ms / time.ms:.2f})"
                        f"  speed {speed} measured {cases[0].whole_ms / case.whole_ms:.2f}x"
                    )


if __name__ == "__main__":
    main()
