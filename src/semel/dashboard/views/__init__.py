"""What is shown, whoever shows it: pages, JSON API, terminal. Needs nothing of the dashboard's own extra."""

from semel.dashboard.settings import Settings
from semel.dashboard.views.inspector import QueueInspector
from semel.dashboard.views.model import DashboardError, NotThere

__all__ = ["DashboardError", "NotThere", "QueueInspector", "Settings"]
