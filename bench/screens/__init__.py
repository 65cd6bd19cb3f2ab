"""The shop in the screenshots."""
