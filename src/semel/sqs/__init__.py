"""What both sides of the wire must agree on: limits, checksums, errors and the shapes of SQS."""
