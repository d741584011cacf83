'use strict';
const { Logger, makeWorkerUtils, run, runMigrations } = require('graphile-worker');

module.exports = (connectionString, ran) => {
  const logger = new Logger(() => (level, message) => {
    if (level === 'error') console.error(message);
  });
  let utils;
  return {
    prepare: () => runMigrations({ connectionString, logger }),
    async open() {
      utils = await makeWorkerUtils({ connectionString, logger });
    },
    enqueue: (number, delay) =>
      utils.addJob('noop', { number }, delay ? { runAt: new Date(Date.now() + delay * 1e3) } : {}),
    enqueueMany: (numbers) => utils.addJobs(numbers.map((number) => ({ identifier: 'noop', payload: { number } }))),
    work(tuned) {
      const batched = {
        concurrentJobs: 96,
        maxPoolSize: 20,
        localQueue: { size: 1000 },
        completeJobBatchDelay: 50,
        failJobBatchDelay: 50,
      };
      return run({
        preset: { worker: { connectionString, logger, ...(tuned ? batched : {}) } },
        logger,
        taskList: { noop: async ({ number }) => ran(number) },
      });
    },
  };
};
