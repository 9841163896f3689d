"""The outputs of a model: shapes, columns and kinds."""
