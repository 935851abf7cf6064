"""Conversations: one answer at a time, or a session that keeps what it has read."""
