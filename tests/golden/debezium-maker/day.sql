-- before: what the connector finds and takes as its snapshot
CREATE TABLE orders (
  id integer PRIMARY KEY,
  state text NOT NULL,
  total integer NOT NULL,
  price numeric(38, 18),
  placed timestamptz,
  due date,
  at timestamp,
  weight double precision,
  gift boolean,
  note text,
  extra jsonb,
  tags text[],
  raw bytea,
  code uuid
);
CREATE TABLE finished (id integer PRIMARY KEY); -- a row of it says that the day is over
ALTER TABLE orders REPLICA IDENTITY FULL;
INSERT INTO orders VALUES (1, 'new', 10, 12345678901234567890.123456789012345678, '2026-03-01 10:00:00.123456+01', '2026-03-05', '2026-03-01 09:00:00.123456', 0.1, true, 'first', '{"a": [1, 2.50]}', '{x,y}', '\x00ff', '0a1b2c3d-0000-4000-8000-000000000001');
INSERT INTO orders (id, state, total) VALUES (2, 'new', 20), (3, 'new', 30);
-- day: one transaction each line
INSERT INTO orders (id, state, total, price) VALUES (4, 'new', 40, 0.000000000000000001);
INSERT INTO orders (id, state, total, note) VALUES (5, 'new', 50, 'naïve "quoted" \ 🚚');
INSERT INTO orders (id, state, total, weight) VALUES (6, 'new', 60, 1e300);
UPDATE orders SET state = 'paid' WHERE id = 1;
DELETE FROM orders WHERE id = 2;
UPDATE orders SET id = 30 WHERE id = 3;
BEGIN; INSERT INTO orders (id, state, total) VALUES (7, 'new', 70), (8, 'new', 80); UPDATE orders SET total = 71 WHERE id = 7; COMMIT;
BEGIN; INSERT INTO orders (id, state, total) VALUES (9, 'never', 90); ROLLBACK;
ALTER TABLE orders ADD COLUMN carrier text;
UPDATE orders SET carrier = 'post', id = 40 WHERE id = 4;
INSERT INTO orders (id, state, total) VALUES (2, 'again', 20);
UPDATE orders SET state = 'sent', note = NULL WHERE id = 1;
DELETE FROM orders WHERE id = 8;
