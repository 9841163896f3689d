"""The routes of a server: pictures, sounds and texts."""
