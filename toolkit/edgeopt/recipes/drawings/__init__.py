"""Answers drawn on pictures."""

from __future__ import annotations

HEIGHT = 320
"""Pixels of a drawn picture; here, since it is known without OpenCV."""
