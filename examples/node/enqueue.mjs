// An order, a job and an event in one transaction: all of them are there after COMMIT, or none.
//
//   DATABASE_URL=postgresql://user@host/db node enqueue.mjs 1001 129.5
//
// Run it again with the same arguments and nothing happens twice; with another amount, it is a conflict.
import pg from 'pg'

const order = Number(process.argv[2] ?? 1001)
const amount = Number(process.argv[3] ?? 129.5)

const client = new pg.Client({ connectionString: process.env.DATABASE_URL, application_name: 'orders' })
await client.connect()
try {
  await client.query('CREATE TABLE IF NOT EXISTS orders (id bigint PRIMARY KEY, amount numeric NOT NULL)')
  await client.query('BEGIN')
  await client.query('INSERT INTO orders VALUES ($1, $2) ON CONFLICT (id) DO NOTHING', [order, amount])

  // Every JSON argument through JSON.stringify: pg would send an array as a PostgreSQL array, and a string bare.
  // The policy is only needed until a worker has registered the handler, which brings its own.
  const job = await client.query(
    `SELECT * FROM redrive.enqueue('invoice', payload => $1, key => $2, tenant => 'acme',
                                   policy => '{"max_attempts": 5}')`,
    [JSON.stringify({ order, amount }), JSON.stringify(['order', order])])

  const event = await client.query(
    `SELECT * FROM redrive.publish('order.paid', payload => $1, event_id => $2, tenant => 'acme')`,
    [JSON.stringify({ order, amount }), JSON.stringify(`order-${order}-paid`)])

  const batch = await client.query(
    'SELECT * FROM redrive.enqueue_many($1) ORDER BY n',
    [JSON.stringify(['pack', 'ship'].map((step) => (
      { handler: step, key: ['order', order], payload: { order }, tenant: 'acme', policy: {}, delay: '5 minutes' })))])

  // A conflict does not end the transaction: whether it should is decided here.
  const conflict = [...job.rows, ...event.rows, ...batch.rows].some((row) => row.decided === 'conflict')
  await client.query(conflict ? 'ROLLBACK' : 'COMMIT')

  console.log(JSON.stringify({
    committed: !conflict,
    job: job.rows[0],
    event: event.rows[0],
    batch: batch.rows
  }, null, 2))
} catch (error) {
  await client.query('ROLLBACK').catch(() => {})
  // What is wrong, and what to do about it.
  console.error([error.message, error.hint].filter(Boolean).join('\n'))
  process.exitCode = 1
} finally {
  await client.end()
}
