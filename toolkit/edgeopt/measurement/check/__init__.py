"""The command `check`: the regression gate against a baseline."""
