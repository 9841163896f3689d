"""The commands `quantize`, `prune` and `finetune`: one step, one file out."""
