-- See publish_1. The deliveries' numbers with commas between them and their IDs end to end: an array would cost some
-- drivers a look at the catalogue.
SELECT ord, event_seq, decided, array_to_string(seqs, ','),
       array_to_string(array(SELECT encode(d, 'hex') FROM unnest(delivery_ids) d), '')
FROM {schema}.publish_1($1::text, $2::text, $3::bytea, $4::bytea, $5::bytea, $6::text::int[], $7::text::int[], $8::text,
                        $9::text, $10::int)
