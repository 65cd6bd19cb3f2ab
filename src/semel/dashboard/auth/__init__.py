"""Authentication and authorisation."""
