"""The sides of vendors' libraries that must not share our process: one file each, run as a module."""
