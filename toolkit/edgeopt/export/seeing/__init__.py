"""Language models that see, from Hugging Face folders: the encoder of pictures, and the decoder that reads its rows."""
