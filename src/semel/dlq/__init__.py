"""Dead letters: look at them, understand them, send them back once, or let them go.

`semel.dlq.service.Desk` is the one service behind the command line, the JSON API and the pages.
"""
