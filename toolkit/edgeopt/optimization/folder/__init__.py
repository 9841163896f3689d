"""The output folder of a run: what is kept, resumed and replayed."""
