"""What a run leaves behind: metrics, checkpoints, earlier runs."""
