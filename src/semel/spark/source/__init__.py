"""`format("sqs")` as a source: plan a batch, receive and seal its messages, and delete them once they are safe."""
