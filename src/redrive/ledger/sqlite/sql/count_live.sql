-- Waiting and leased deliveries, up to a cap. ?1 cap
SELECT count(*) FROM (
  SELECT 1 FROM delivery_state INDEXED BY delivery_state_deadline WHERE disposition <= 1 LIMIT ?1
)
