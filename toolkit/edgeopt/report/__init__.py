"""Documents, the formats that write them, and pictures."""
