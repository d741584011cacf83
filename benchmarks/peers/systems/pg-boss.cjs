'use strict';
const { PgBoss } = require('pg-boss');

module.exports = (connectionString, ran) => {
  let boss;
  const open = async (useListenNotify = false) => {
    boss = new PgBoss({ connectionString, useListenNotify });
    boss.on('error', console.error);
    await boss.start();
  };
  return {
    open: () => open(),
    async prepare() {
      await open();
      await boss.createQueue('bench', { notify: true });
      await boss.stop({ graceful: false });
    },
    enqueue: (number, delay) =>
      boss.send('bench', { number }, delay ? { startAfter: new Date(Date.now() + delay * 1e3) } : {}),
    enqueueMany: (numbers) => boss.insert('bench', numbers.map((number) => ({ data: { number } }))),
    async work(tuned) {
      await open(tuned);
      const options = tuned ? { batchSize: 1000, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 } : {};
      await boss.work('bench', options, async (jobs) => {
        for (const { data } of jobs) ran(data.number);
      });
    },
  };
};
