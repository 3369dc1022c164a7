-- Whether a 410 ever disabled a destination: redrive's own decision, so it is in the audit. $1 destination
SELECT EXISTS (
    SELECT 1 FROM {schema}.audit
    WHERE target = $1::text AND action = 'destination.disable' AND actor = 'redrive' AND reason = '410 Gone'
)
