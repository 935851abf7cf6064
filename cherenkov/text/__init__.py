"""Text in and out: tokenizer, chat template."""
