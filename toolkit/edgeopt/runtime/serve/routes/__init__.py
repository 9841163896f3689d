"""What a server answers: pictures, sounds and texts."""
