"""The built-in base: a small pretrained Llama-style model with its tokenizer (model card: ``README.md`` beside it)."""
