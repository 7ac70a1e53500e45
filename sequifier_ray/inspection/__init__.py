"""What a table or a preprocessed data set holds, and what windows of some width would make of it."""
