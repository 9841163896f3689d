"""INT8 for decoders whose tokens are not equally loud: what their products read, and how it is made quieter."""
