-- How many tombstones, of deliveries and of events, are past their time. $1 purged by then
SELECT (SELECT count(*) FROM {schema}.identity WHERE purged_at <= $1::bigint),
       (SELECT count(*) FROM {schema}.event WHERE purged_at <= $1::bigint)
