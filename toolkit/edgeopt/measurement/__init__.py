"""Times, accuracy and resources of models, and what they prove."""
