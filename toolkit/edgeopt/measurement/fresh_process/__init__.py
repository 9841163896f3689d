"""What is measured in processes of their own: start to first answer, peak memory."""
