"""The device's side of `edgeopt push`: signed releases, and an app that follows the version that runs."""
