// pg-boss: finished jobs are kept. A handler gets a whole batch; a full batch is followed by the next at once.
import { jobs, event, main, need, options } from "./child.mjs";

const { PgBoss } = need("pg-boss");
const QUEUE = "bench";
const POLLERS = 2;

let boss;

async function start() {
  if (boss) return;
  boss = new PgBoss({ connectionString: options.url, useListenNotify: true });
  boss.on("error", console.error);
  await boss.start();
}

const handlers = {
  noop: async (batch) => batch.forEach(() => jobs.noop()),
  hook: (batch) => Promise.all(batch.map((job) => jobs.post(job.id, JSON.stringify(job.data)))),
  stamp: async (batch) => batch.forEach((job) => jobs.stamp(job.data.sent)),
};

main({
  async install() {
    await start();
    await boss.createQueue(QUEUE, { notify: options.job === "stamp" });
  },
  async enqueue(job, first, end) {
    const rows = [];
    for (let n = first; n < end; n++) rows.push({ data: job === "hook" ? event(n) : { n } });
    await boss.insert(QUEUE, rows);
  },
  async enqueueStamp(sent) {
    await boss.send(QUEUE, { sent });
  },
  async connect() {
    await start();
  },
  async run(job) {
    const batch = job === "hook" ? Math.ceil(options.slots / POLLERS) : options.slots;
    const localConcurrency = job === "hook" ? POLLERS : 1;
    const poll = { pollingIntervalSeconds: 0.5, batchSize: batch, localConcurrency, burstWhenBatchFull: batch > 1 };
    await boss.work(QUEUE, poll, handlers[job]);
  },
});
