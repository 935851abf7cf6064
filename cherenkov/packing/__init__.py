"""The packed store: its layout, how it is written, and how it is verified."""
