"""Where the facts about queues come from: Semel's broker, SQS, CloudWatch."""
