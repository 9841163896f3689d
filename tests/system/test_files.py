from __future__ import annotations

import pytest

from edgeopt.errors import UnavailableError
from edgeopt.system.files import require_space


def test_a_disk_without_room_is_told_before_anything_is_written(tmp_path):
    require_space(tmp_path, 1)
    with pytest.raises(UnavailableError, match="has room for") as caught:
        require_space(tmp_path, 1 << 60)
    assert "TMPDIR" in caught.value.remedy
