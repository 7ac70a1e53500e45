"""The model in plain torch: no process group, no files."""
