"""Views for notebooks: one widget each, with a script-free page and plain text for where no widget runs."""
