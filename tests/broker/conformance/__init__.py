"""Every rule of the SQS specification, checked through the wire on both protocols."""
