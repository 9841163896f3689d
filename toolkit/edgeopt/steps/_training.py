"""Names that both the plan and the steps need of training, without what trains."""

TRAINING_S = 600.0
"""How long the step `finetune` trains at most, unless the user says."""
