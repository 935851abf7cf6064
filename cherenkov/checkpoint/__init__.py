"""Reading other people's model files: strictly, lazily, and without trusting a byte of them."""
