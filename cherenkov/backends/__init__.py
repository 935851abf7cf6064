"""Compute backends, found by name. `auto` takes the fastest that works here."""
