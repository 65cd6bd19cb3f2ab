"""What is shown, whoever shows it: pages, JSON API, terminal. Needs nothing of the dashboard's own extra."""

from semel.dashboard.settings import Settings
from semel.dashboard.views.errors import DashboardError, NotThere
from semel.dashboard.views.inspector import QueueInspector

__all__ = ["DashboardError", "NotThere", "QueueInspector", "Settings"]
