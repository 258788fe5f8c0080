"""What one core carries in front of an engine, measured over one that makes its tokens up."""
