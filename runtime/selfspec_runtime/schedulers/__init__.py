"""Schedulers decide when drafting happens. A new one is one file and one line in ``registry.py``."""
