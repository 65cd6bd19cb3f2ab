"""Reading and claiming messages of a queue: on Semel's broker by place and id, on SQS by receiving."""
