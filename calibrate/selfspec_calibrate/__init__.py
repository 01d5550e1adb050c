"""Finds the draft plan that really makes a model faster, on the user's own prompts and machine."""
