"""`format("sqs")` as a source: plan a batch, receive and seal it, and delete it once it is safe."""
