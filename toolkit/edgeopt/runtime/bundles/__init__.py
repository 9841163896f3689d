"""What a bundle is made of: its folder, the parts of its manifest, stored models, and several targets."""
