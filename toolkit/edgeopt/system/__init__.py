"""This machine, its files and packages, and the targets."""
