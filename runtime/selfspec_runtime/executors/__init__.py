"""How passes are executed: one by one as Python asks for them, or recorded once and replayed on a device."""
