"""Dead-letter messages: list them, group them by error, send them back once, or delete them.

`semel.dlq.service.DeadLetterService` is the one service behind the command line, the JSON API and the pages.
"""
