"""Walks inside other people's trainers; each module imports its library, so import it only where that is installed."""
