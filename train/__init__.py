"""Training: data preparation, the trainer and its command line."""
