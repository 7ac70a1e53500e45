"""Data on disk and on its way to the model: metadata, shards, windows, order, batches."""
