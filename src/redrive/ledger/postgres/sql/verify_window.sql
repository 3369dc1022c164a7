-- The last seq of the next chunk: so many deliveries at most, and not many more entries. $1 after $2 chunk $3 top
SELECT min(last) FROM (
  SELECT coalesce((SELECT seq FROM {schema}.delivery WHERE seq > $1::bigint ORDER BY seq
                   LIMIT 1 OFFSET $2::bigint - 1), $3::bigint) AS last
  UNION ALL
  SELECT coalesce((SELECT seq FROM {schema}.delivery_state WHERE seq > $1::bigint ORDER BY seq
                   LIMIT 1 OFFSET $2::bigint - 1), $3::bigint)
  UNION ALL
  SELECT coalesce((SELECT seq FROM {schema}.attempt WHERE seq > $1::bigint ORDER BY seq
                   LIMIT 1 OFFSET $2::bigint * 8), $3::bigint)
  UNION ALL
  SELECT coalesce((SELECT seq FROM {schema}.transition WHERE seq > $1::bigint ORDER BY seq
                   LIMIT 1 OFFSET $2::bigint * 8), $3::bigint)
) AS ends
