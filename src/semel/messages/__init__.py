"""What a message means to Semel: its key, how its body is decoded, and the attributes of a dead-letter message.

Nothing here is public: users send and receive messages with `semel.sqs`.
"""

__all__: list[str] = []
