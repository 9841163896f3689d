"""A command that runs on another device: its files are sent, it runs there, and what it writes comes back.

The device needs a POSIX shell, Python 3.11 or later and `ssh`; edgeopt brings itself along.
"""

VERBS = ("inspect", "bench", "check", "compare", "optimize", "run")
"""Commands that take `--on`: they read files, end by themselves, and most write files.

Python calls them too: their results come back as the objects that they are.
"""
SEARCHING = ("optimize",)
"""Those that make candidates, which is done here where it can be: the device measures, and chooses."""
RESULT_FLAG = "--result"
"""Option of them that writes the result for the program that began the command."""
OF_THIS_TERMINAL = ("chat", "view", "cluster")
"""Options of what a person does while the command runs, and of workers that score for this machine."""
