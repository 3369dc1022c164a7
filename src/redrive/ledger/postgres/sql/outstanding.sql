-- Whether a route has anything leased, or waiting and not held. A lease lasts an hour at most, so waiting work whose
-- age ends later is not read. $1 route
SELECT coalesce((SELECT true FROM {schema}.delivery_state
                 WHERE disposition = 0 AND hold = 0 AND route = $1::bigint
                 ORDER BY route, priority LIMIT 1),
                (SELECT true FROM {schema}.delivery_state
                 WHERE disposition <= 1
                   AND (CASE WHEN disposition = 1 THEN leased_until ELSE deadline_at END)
                       <= (SELECT {schema}.clock_us()) + 3600000000
                   AND disposition = 1 AND route + 0 = $1::bigint
                 LIMIT 1),
                false)
