-- SQS's receive count tells the deliveries of a message apart.
SELECT *, coalesce(receive_count, 0) AS number, CAST(0 AS BIGINT) AS stream FROM events
