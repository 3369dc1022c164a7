-- How many tombstones, of deliveries and of events, are past their time. ?1 purged by then
SELECT (SELECT count(*) FROM identity WHERE purged_at <= ?1 AND seq < (SELECT max(seq) FROM identity)),
       (SELECT count(*) FROM event WHERE purged_at <= ?1 AND event_seq < (SELECT max(event_seq) FROM event))
