"""Token trees: several continuations in one verification, each row seeing only the path that leads to it."""
