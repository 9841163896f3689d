"""Which samples to label so that accuracy is decided: changed answers only, asked blind on a page, read again."""
