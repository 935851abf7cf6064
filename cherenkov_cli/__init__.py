"""The `cherenkov` command."""
