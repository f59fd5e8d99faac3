"""The model, its data and its options."""
