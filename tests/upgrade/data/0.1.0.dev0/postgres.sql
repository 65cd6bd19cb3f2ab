CREATE SCHEMA semel;
CREATE FUNCTION semel.fence_floor(after bigint) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
    BEGIN
        RETURN (SELECT meta.fence_floor FROM "semel"."semel_meta" AS meta LIMIT 1);
    END $$;
CREATE TABLE semel.ledger (
    key bytea NOT NULL,
    fence bigint NOT NULL,
    lease_ends double precision NOT NULL,
    first_seen double precision NOT NULL,
    changed double precision NOT NULL,
    expires double precision NOT NULL,
    attempt integer NOT NULL,
    minute integer GENERATED ALWAYS AS ((floor((expires / (60)::double precision)))::integer) STORED NOT NULL,
    status smallint NOT NULL,
    claimant text NOT NULL,
    payload text NOT NULL,
    source text NOT NULL,
    result bytea,
    notes jsonb
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_insert_scale_factor='0.05');
CREATE TABLE semel.outbox (
    id bigint NOT NULL,
    hidden_until double precision NOT NULL,
    queue text NOT NULL,
    body text NOT NULL,
    key text NOT NULL,
    delay integer,
    "group" text,
    attributes jsonb NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    error text DEFAULT ''::text NOT NULL
);
ALTER TABLE semel.outbox ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME semel.outbox_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE VIEW semel.readable AS
 SELECT
        CASE
            WHEN (POSITION(('\x00'::bytea) IN (key)) > 0) THEN encode(key, 'escape'::text)
            ELSE convert_from(key, 'UTF8'::name)
        END AS key,
    (ARRAY['free'::text, 'claimed'::text, 'claimed'::text, 'done'::text, 'rejected'::text])[(status + 1)] AS status,
    fence,
    attempt,
    claimant,
    to_timestamp(lease_ends) AS lease_ends,
    payload,
    source,
    length(result) AS result_bytes,
    to_timestamp(first_seen) AS first_seen,
    to_timestamp(changed) AS changed,
    to_timestamp(expires) AS expires
   FROM semel.ledger;
CREATE TABLE semel.semel_meta (
    version integer NOT NULL,
    identity text NOT NULL,
    fence_floor bigint NOT NULL
);
INSERT INTO semel.ledger VALUES ('\x72656c6561736564', 2, 4102444800, 4102444800, 4102444800, 4104864000, 2, DEFAULT, 0, '', '', '', NULL, '{"charge": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4\nOTo7PD0+P0BBQkNERUZHSElKS0xNTk9QUVJTVFVWV1hZWltcXV5fYGFiY2RlZmdoaWprbG1ub3Bx\ncnN0dXZ3eHl6e3x9fn+AgYKDhIWGh4iJiouMjY6PkJGSk5SVlpeYmZqbnJ2en6ChoqOkpaanqKmq\nq6ytrq+wsbKztLW2t7i5uru8vb6/wMHCw8TFxsfIycrLzM3Oz9DR0tPU1dbX2Nna29zd3t/g4eLj\n5OXm5+jp6uvs7e7v8PHy8/T19vf4+fr7/P3+/w=="}');
INSERT INTO semel.ledger VALUES ('\x68656c64', 1, 4102448400, 4102444800, 4102444800, 4104864000, 1, DEFAULT, 1, 'held 1', '', '', NULL, '{"charge": "MQ=="}');
INSERT INTO semel.ledger VALUES ('\x6c656674', 1, 4102444805, 4102444800, 4102444800, 4104864000, 1, DEFAULT, 1, 'left 1', '', '', NULL, '{"mail": "", "charge": "dHgtMQ=="}');
INSERT INTO semel.ledger VALUES ('\x646f6e65', 1, 4102444830, 4102444800, 4102444800, 4104864000, 1, DEFAULT, 3, 'done 1', 'digest', '', '\x000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9fa0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebfc0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedfe0e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5f6f7f8f9fafbfcfdfeff', NULL);
INSERT INTO semel.ledger VALUES ('\x72656a6563746564', 1, 4102444830, 4102444800, 4102444800, 4104864000, 1, DEFAULT, 4, 'rejected 1', '', 'orders/m1', '\x6e6f207375636820637573746f6d6572', NULL);
INSERT INTO semel.ledger VALUES ('\x73656d656c3a6b65792d72756c652f75732d656173742d313a3030303030303030303030303a6f7264657273', 1, 4102444830, 4102444800, 4102444800, 4417804800, 1, DEFAULT, 3, 'rules', '', '', '\x242e6964', NULL);
INSERT INTO semel.outbox OVERRIDING SYSTEM VALUE VALUES (1, 4102444830, 'nowhere', 'refused', '', NULL, NULL, '{}', 1, 'there is no such queue');
INSERT INTO semel.outbox OVERRIDING SYSTEM VALUE VALUES (2, 0, 'receipts.fifo', '{"order":1}', 'k1', NULL, 'g', '{"tenant": "ä"}', 0, '');
INSERT INTO semel.outbox OVERRIDING SYSTEM VALUE VALUES (3, 0, 'receipts.fifo', '{"order":2}', 'k2', NULL, 'g', '{"tenant": "ä"}', 0, '');
INSERT INTO semel.outbox OVERRIDING SYSTEM VALUE VALUES (4, 0, 'receipts', 'later', '', 60, NULL, '{}', 0, '');
INSERT INTO semel.semel_meta VALUES (3, 'f0a56818df28489aa18e2b6e84c2948f', 0);
SELECT pg_catalog.setval('semel.outbox_id_seq', 4, true);
ALTER TABLE ONLY semel.ledger
    ADD CONSTRAINT ledger_pkey PRIMARY KEY (key);
ALTER TABLE ONLY semel.outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY (id);
CREATE INDEX ledger_minute ON semel.ledger USING btree (minute);
CREATE INDEX outbox_groups ON semel.outbox USING btree (queue, "group", id) WHERE ("group" IS NOT NULL);
