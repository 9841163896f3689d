"""The times of layers on a device that is not here, predicted from those that were measured on it."""
