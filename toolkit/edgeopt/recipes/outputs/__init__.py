"""What comes out of a model: shapes, columns and kinds of outputs."""
