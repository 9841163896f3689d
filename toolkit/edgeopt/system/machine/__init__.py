"""This machine: processor, memory, threads, and the facts that figures depend on."""
