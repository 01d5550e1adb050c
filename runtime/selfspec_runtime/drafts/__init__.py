"""Draft sources propose tokens. A new one is one file and one line in ``registry.py``."""
