-- When the next waiting delivery of a route is due. ?1 route
SELECT min(at) FROM (
  SELECT min(available_at) AS at FROM delivery_state WHERE disposition = 0 AND hold = 0 AND route = ?1 AND priority = 0
  UNION ALL
  SELECT min(available_at) FROM delivery_state WHERE disposition = 0 AND hold = 0 AND route = ?1 AND priority = 1
  UNION ALL
  SELECT min(available_at) FROM delivery_state WHERE disposition = 0 AND hold = 0 AND route = ?1 AND priority = 2
  UNION ALL
  SELECT min(available_at) FROM delivery_state WHERE disposition = 0 AND hold = 0 AND route = ?1 AND priority = 3
)
