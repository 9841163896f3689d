"""Free memory is what the machine and the limits of its control groups leave."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from edgeopt.system.machine.memory import free_bytes

MIB = 1 << 20


def group(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name.replace("__", ".")).write_text(f"{value}\n", "utf-8")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    return tmp_path / "proc"


def test_a_limit_leaves_what_is_not_used_and_files_in_memory_can_go(proc, tmp_path):
    (proc / "self" / "cgroup").write_text("0::/box/app\n", "utf-8")
    used = {"memory__current": 40 * MIB, "memory__stat": f"anon {5 * MIB}\nfile {30 * MIB}\nshmem {10 * MIB}"}
    group(tmp_path / "groups" / "box" / "app", memory__max="max", **used)
    group(tmp_path / "groups" / "box", memory__max=64 * MIB, **used)
    assert free_bytes(proc, tmp_path / "groups") == 64 * MIB - (40 - 30 + 10) * MIB


def test_a_container_of_version_1_sees_its_limit_at_the_root(proc, tmp_path):
    (proc / "self" / "cgroup").write_text("4:memory:/docker/abc\n0::/\n", "utf-8")
    stat = f"cache {MIB}\ntotal_cache {2 * MIB}\ntotal_shmem 0"
    told = {"memory__limit_in_bytes": 32 * MIB, "memory__usage_in_bytes": 12 * MIB, "memory__stat": stat}
    group(tmp_path / "groups" / "memory", **told)
    assert free_bytes(proc, tmp_path / "groups") == 22 * MIB


@pytest.mark.parametrize("text", ["", "0::/none\n", "nothing\n"])
def test_without_a_limit_it_is_what_the_machine_has(proc, tmp_path, text):
    (proc / "self" / "cgroup").write_text(text, "utf-8")
    free = free_bytes(proc, tmp_path / "groups")
    assert free == pytest.approx(psutil.virtual_memory().available, rel=0.2)
    assert free_bytes(tmp_path / "none", tmp_path / "none") > 0
