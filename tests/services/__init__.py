"""What tests share: real servers as children, and waiting for facts."""
