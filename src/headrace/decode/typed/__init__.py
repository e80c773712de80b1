"""Values that bring their own types, fitted to the columns of a payload schema."""
