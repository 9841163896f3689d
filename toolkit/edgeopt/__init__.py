"""edgeopt makes a neural network meet a frame budget on a device, and proves it."""
