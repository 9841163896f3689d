"""What this machine can run, and what it lacks."""
