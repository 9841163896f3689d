"""The steps of `optimize`: each turns one model into others."""
