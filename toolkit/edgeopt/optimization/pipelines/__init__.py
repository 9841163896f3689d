"""`optimize` for a pipeline of several models: the forms of all are chosen together, for one budget."""
