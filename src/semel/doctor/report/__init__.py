"""A diagnosis for people (text, html) and for machines (json). Pure: no terminal, no file, no clock."""
