"""What is shown, whoever shows it: pages, JSON API, terminal. Needs nothing of the dashboard's own extra."""
