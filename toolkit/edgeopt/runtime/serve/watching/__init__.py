"""The records for whoever watches a server: its log, its counts, its traces."""
