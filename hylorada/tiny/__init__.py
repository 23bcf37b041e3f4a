"""The built-in base: a small pretrained Llama-style model with its tokenizer.

The file ``README.md`` in this folder is its model card.
"""
