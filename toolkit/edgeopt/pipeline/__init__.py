"""From a model to candidates, a choice, a bundle and a report."""
