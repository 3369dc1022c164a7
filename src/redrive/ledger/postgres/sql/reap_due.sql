-- Whether any lease or age has run out: the first that ends is enough to know. $1 now
SELECT coalesce((SELECT (CASE WHEN disposition = 1 THEN leased_until ELSE deadline_at END)
                 FROM {schema}.delivery_state WHERE disposition <= 1
                 ORDER BY (CASE WHEN disposition = 1 THEN leased_until ELSE deadline_at END) LIMIT 1)
                <= $1::bigint, false)
