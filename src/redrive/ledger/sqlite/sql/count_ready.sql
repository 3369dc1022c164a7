-- Waiting deliveries that are not held, up to a cap. ?1 cap
SELECT count(*) FROM (
  SELECT 1 FROM delivery_state INDEXED BY delivery_state_ready WHERE disposition = 0 AND hold = 0 LIMIT ?1
)
