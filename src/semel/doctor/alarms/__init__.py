"""The alarms that a queue needs, and how to write them down for one tool or another."""
