"""`edgeopt profile-device`: the times of a device's layers, measured once and kept in a file."""
