"""The parts of the dashboard's benchmark."""
