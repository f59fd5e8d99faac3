"""Digits: the model, its data and its options."""
