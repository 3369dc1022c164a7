-- How often the clock was set back, by hand: from, to. $1 the action
SELECT before::bigint, after::bigint FROM {schema}.audit WHERE action = $1::text ORDER BY audit
