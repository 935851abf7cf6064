"""Routed experts: records on disk, a bounded pool of slots in memory, and the store that joins them."""
