"""Configuration: one frozen representation from YAML to engine."""
