"""Prompt files: reading, recognising, rendering, splitting."""
