"""Answers under a load: how many at once, and what each waits."""
