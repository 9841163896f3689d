"""How long one step alone may take where nobody says, for the command line and Python."""

from __future__ import annotations

from edgeopt.steps._training import TRAINING_S

SEARCH_S = 180.0
"""The search of `quantize`."""
MINUTES = TRAINING_S / 60
"""The training of `finetune`."""
