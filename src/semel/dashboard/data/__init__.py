"""What is shown, whoever shows it: pages, JSON API, terminal. Needs nothing of the dashboard's own extra."""

from semel.dashboard.data.errors import HouseError, NotThere
from semel.dashboard.data.house import House
from semel.dashboard.settings import Settings

__all__ = ["House", "HouseError", "NotThere", "Settings"]
