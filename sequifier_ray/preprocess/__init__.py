"""From tables to shards: read, validate, fit vocabularies and statistics, encode, publish."""
