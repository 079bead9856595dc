"""What people call from Python."""
