"""The result of a run as a document, with its charts and its verdict."""
