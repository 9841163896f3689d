"""Tars of somebody else are read within limits."""

from __future__ import annotations

import gzip
import io
import tarfile

import pytest

from edgeopt.system.disk.tars import files_of_tar


def tar_of(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for entry, content in entries:
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type = kind
    return made


def read(data: bytes, **options: bool) -> dict[str, bytes]:
    return {member.name: content.read() for member, content in files_of_tar(io.BytesIO(data), **options)}


@pytest.mark.parametrize("is_packed", [False, True])
def test_files_are_read_with_their_contents_and_links_are_not(is_packed):
    link = entry("link", tarfile.SYMTYPE)
    link.linkname = "/etc/passwd"
    data = tar_of(
        (entry("a" * 300), b"x" * 20_000), (link, b""), (entry("dir", tarfile.DIRTYPE), b""), (entry("b"), b"2")
    )
    assert read(gzip.compress(data) if is_packed else data, is_packed=is_packed) == {
        "a" * 300: b"x" * 20_000,
        "b": b"2",
    }


def test_files_that_are_not_read_are_passed_over():
    data = tar_of(*((entry(str(number)), b"x" * (12 << 20)) for number in range(2)))
    assert [member.name for member, _ in files_of_tar(io.BytesIO(data))] == ["0", "1"]


def endless_head() -> bytes:
    head = entry("name", tarfile.XHDTYPE)
    head.size = 1 << 40
    return head.tobuf() + b"0" * (12 << 20)


def many_heads() -> bytes:
    head = entry("name", tarfile.XHDTYPE)
    head.size = 11
    return (head.tobuf() + b"11 path=ab\n".ljust(512, b"\0")) * 2000


def holes() -> bytes:
    text = b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n"
    head = entry("name", tarfile.XHDTYPE)
    head.size = len(text)
    file = entry("file")
    file.size = 1 << 40
    return head.tobuf() + text.ljust(512, b"\0") + file.tobuf() + b"9" * (12 << 20)


@pytest.mark.parametrize(
    ("data", "is_packed"),
    [
        (endless_head(), False),
        (gzip.compress(endless_head()), True),
        (many_heads(), False),
        (holes(), False),
        (tar_of((entry("a"), b"x" * 2000))[:1500], False),
        (b"no tar" * 200, False),
        (b"no gzip", True),
        (gzip.compress(tar_of((entry("a"), b"x" * 2000)))[:-20], True),
        (b"", False),
    ],
    ids=["endless head", "packed", "many heads", "holes", "cut", "no tar", "no gzip", "cut gzip", "empty"],
)
def test_what_is_no_tar_or_takes_memory_is_refused(data, is_packed):
    with pytest.raises(tarfile.ReadError):
        read(data, is_packed=is_packed)
