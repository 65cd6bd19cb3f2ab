"""The consumer: poll, claim, heartbeat, work, record, delete; a plain function in, its effect once."""
