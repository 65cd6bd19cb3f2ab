"""The data that pages, JSON API and terminal show. It needs no package of the dashboard extra."""

from semel.dashboard.settings import Settings
from semel.dashboard.views.inspector import QueueInspector
from semel.dashboard.views.model import DashboardError, NotThere

__all__ = ["DashboardError", "NotThere", "QueueInspector", "Settings"]
