"""Data that earlier versions have written must be readable."""
