"""Controllers decide how many tokens to draft. A new one is one file and one line in ``registry.py``."""
