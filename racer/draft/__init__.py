"""Draft trees: what is remembered of a request's text and logits, and how trees grow from it."""
