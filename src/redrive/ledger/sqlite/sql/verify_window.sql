-- The last seq of the next chunk: so many deliveries at most, and not many more entries. ?1 after ?2 chunk ?3 top
SELECT min(last) FROM (
  SELECT coalesce((SELECT seq FROM identity WHERE seq > ?1 ORDER BY seq LIMIT 1 OFFSET ?2 - 1), ?3) AS last
  UNION ALL
  SELECT coalesce((SELECT seq FROM delivery WHERE seq > ?1 ORDER BY seq LIMIT 1 OFFSET ?2 - 1), ?3)
  UNION ALL
  SELECT coalesce((SELECT seq FROM delivery_state WHERE seq > ?1 ORDER BY seq LIMIT 1 OFFSET ?2 - 1), ?3)
  UNION ALL
  SELECT coalesce((SELECT seq FROM attempt WHERE seq > ?1 ORDER BY seq LIMIT 1 OFFSET ?2 * 8), ?3)
  UNION ALL
  SELECT coalesce((SELECT seq FROM transition WHERE seq > ?1 ORDER BY seq LIMIT 1 OFFSET ?2 * 8), ?3)
)
