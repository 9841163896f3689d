"""A recipe drafted from a model: what it tells of itself, what its files tell, what is asked."""
