"""Every rule of the SQS specification, tested over the network with both protocols."""
