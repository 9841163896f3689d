"""Does the test of a bundle's numbers tell a processor that saturates from one that does not?

    edgeopt optimize digits_detector -t cpu-x86-vnni -o out/vnni
    edgeopt optimize digits_detector -t cpu-x86-avx2 -o out/avx2
    python benchmarks/selftest.py out/vnni out/avx2

Loads each bundle here, and on an emulated processor with AVX2 and without VNNI (`qemu-x86_64 -cpu max` of QEMU 7.2,
in Debian's qemu-user), and prints which model runs there and what is told. Loading takes a minute there.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

LOAD = """
import sys
from edgeopt import Runtime
with Runtime.load(sys.argv[1]) as runtime:
    print(f"{runtime.artefact.file} ({runtime.artefact.precision})", *runtime.notes, sep="\\n    ")
"""


def main(bundles: list[str]) -> None:
    emulator = shutil.which("qemu-x86_64")
    machines = {"here": [], **({"AVX2, emulated": [emulator, "-cpu", "max"]} if emulator else {})}
    for bundle in bundles:
        for machine, command in machines.items():
            done = subprocess.run([*command, sys.executable, "-c", LOAD, bundle], capture_output=True, text=True)
            print(f"{bundle} {machine}: {(done.stdout or done.stderr).strip()}", flush=True)


if __name__ == "__main__":
    if not sys.argv[1:]:
        raise SystemExit(__doc__)
    main(sys.argv[1:])
