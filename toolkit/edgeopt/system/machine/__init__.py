"""What this machine is: processor, memory, threads, and what figures depend on."""
