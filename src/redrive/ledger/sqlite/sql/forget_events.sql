-- Events past their time, once no tombstone of a delivery is: else the event could be published anew, and its
-- deliveries not be made. The highest event_seq stays: the next one is dealt from it. ?1 purged by then ?2 limit
DELETE FROM event
WHERE event_seq IN (SELECT event_seq FROM event
                    WHERE purged_at <= ?1 AND event_seq < (SELECT max(event_seq) FROM event)
                    ORDER BY purged_at LIMIT ?2)
  AND NOT EXISTS (SELECT 1 FROM identity WHERE purged_at <= ?1 AND seq < (SELECT max(seq) FROM identity))
RETURNING event_seq
