"""The dead-letter tools: list messages, group them by error, redrive, edit, delete, restore and watch them.

`semel.dlq.service.DeadLetterService` is the one service behind the command line, the JSON API and the pages.
"""
