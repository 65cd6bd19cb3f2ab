"""What is shown, whoever shows it: pages, JSON API, terminal. Needs nothing of the dashboard's own extra."""

from semel.dashboard.settings import Settings
from semel.dashboard.views.errors import HouseError, NotThere
from semel.dashboard.views.inspector import House

__all__ = ["House", "HouseError", "NotThere", "Settings"]
