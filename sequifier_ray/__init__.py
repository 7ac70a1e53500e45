"""Transformers on event sequences, trained across a Ray cluster from two YAML files."""

__version__ = "0.1.0"
