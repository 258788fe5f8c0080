"""What speaks to servers: an API over a transport."""
