-- Waiting deliveries of one route, up to a cap. ?1 route ?2 cap
SELECT count(*) FROM (
  SELECT 1 FROM delivery_state INDEXED BY delivery_state_ready
  WHERE disposition = 0 AND hold = 0 AND route = ?1 LIMIT ?2
)
