"""Write the screens in tests/screens as commands show them now; look at the difference before it is committed.

python tests/update_screens.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "fixtures"))

from screens import FOLDER, screens

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    shown = screens()
    for old in set(FOLDER.iterdir()) - {FOLDER / name for name in shown}:
        old.unlink()
    for name, text in shown.items():
        (FOLDER / name).write_text(text, "utf-8", newline="\n")
