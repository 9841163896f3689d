"""What whoever watches a server reads: its log, its counts, its traces."""
