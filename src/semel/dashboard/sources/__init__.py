"""Where the facts about queues come from: Semel's broker, or SQS with or without CloudWatch."""
