"""ONNX ops in torch, and the order in which a model's nodes are computed: for training, and for what torch exports."""
