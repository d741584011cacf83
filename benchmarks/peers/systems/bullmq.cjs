'use strict';
const { Queue, Worker } = require('bullmq');

module.exports = (url, ran) => {
  const { hostname: host, port } = new URL(url);
  const connection = { host, port: Number(port), maxRetriesPerRequest: null };
  let queue;
  return {
    async open() {
      queue = new Queue('bench', { connection, defaultJobOptions: { removeOnComplete: true } });
      await queue.waitUntilReady();
    },
    enqueue: (number, delay) => queue.add('noop', { number }, delay ? { delay: Math.round(delay * 1e3) } : {}),
    enqueueMany: (numbers) => queue.addBulk(numbers.map((number) => ({ name: 'noop', data: { number } }))),
    work(tuned) {
      const options = tuned ? { connection, concurrency: 100 } : { connection };
      const worker = new Worker('bench', async (job) => ran(job.data.number), options);
      worker.on('error', console.error);
    },
  };
};
