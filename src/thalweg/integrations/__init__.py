"""Walks inside other trainers; each module imports its library, so import it only if that is installed."""
