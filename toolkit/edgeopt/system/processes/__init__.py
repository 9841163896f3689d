"""Child processes, signals, time limits, and what packages print."""
