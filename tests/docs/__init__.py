"""What the documentation says, held to the code."""
