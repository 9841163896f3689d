from __future__ import annotations

import pytest

from edgeopt.errors import InvalidFileError, UnavailableError
from edgeopt.system.disk.files import read_text, require_space


def test_a_disk_without_room_is_told_before_anything_is_written(tmp_path):
    require_space(tmp_path, 1)
    with pytest.raises(UnavailableError, match="has room for") as caught:
        require_space(tmp_path, 1 << 60)
    assert "TMPDIR" in caught.value.remedy


def test_a_path_of_thousands_of_characters_is_told_in_one_line(tmp_path):
    with pytest.raises(InvalidFileError) as caught:
        read_text(tmp_path / ("x" * 4000), remedy="name another file")
    assert len(caught.value.problem) < 600
