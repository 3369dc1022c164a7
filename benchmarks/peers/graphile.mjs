// graphile-worker: finished jobs are deleted. A local queue fetches many jobs at once, and closes go in batches without
// a delay, as its performance page has it. Its log line for every job is off. `slots` is how many jobs run at once.
import { jobs, event, main, need, options } from "./child.mjs";

const { run, makeWorkerUtils, Logger } = need("graphile-worker");
const logger = new Logger(() => () => {});
const LOCAL_QUEUE = { noop: 1000, hook: 500 };
const POOL = 25;

function preset(job) {
  const batched = { localQueue: { size: LOCAL_QUEUE[job] }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };
  return {
    worker: {
      logger,
      connectionString: options.url,
      concurrentJobs: options.slots,
      maxPoolSize: POOL,
      pollInterval: 2000,
      ...(job === "stamp" ? {} : batched),
    },
  };
}

let utils;

main({
  async install() {
    utils = await makeWorkerUtils({ preset: preset("stamp") });
    await utils.migrate();
  },
  async enqueue(job, first, end) {
    const specs = [];
    for (let n = first; n < end; n++) specs.push({ identifier: job, payload: job === "hook" ? event(n) : { n } });
    await utils.addJobs(specs);
  },
  async enqueueStamp(sent) {
    await utils.addJob("stamp", { sent });
  },
  async connect() {}, // run() does
  async run(job) {
    await run({
      preset: preset(job),
      noHandleSignals: true,
      taskList: {
        noop: async () => jobs.noop(),
        hook: (payload, helpers) => jobs.post(String(helpers.job.id), JSON.stringify(payload)),
        stamp: async (payload) => jobs.stamp(payload.sent),
      },
    });
  },
});
