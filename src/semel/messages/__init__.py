"""What a message means to Semel: its key, how its body is decoded, and the attributes of a dead-letter message.

Nothing here is for users: messages are sent and received with `semel.sqs`.
"""

__all__: list[str] = []
