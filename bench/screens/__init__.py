"""A shop to take pictures of."""
