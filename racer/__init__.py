"""Decoding engine: RACER drafts, one batched verification a step, the same tokens as plain decoding."""
