"""How frames arrive, wait and are served."""
