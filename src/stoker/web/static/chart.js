// uPlot in Stoker's clothes. Each figure holds a chart that the server drew at the same size; once the points are here
// it is replaced, so nothing moves, and nothing is missing without script. Colours come from a probe element, because a
// custom property with light-dark() reads back unresolved.
(() => {
  "use strict";
  const probe = document.body.appendChild(document.createElement("i"));
  probe.hidden = true;
  const token = (name, alpha = 1) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color.replace("rgb(", "rgba(").replace(")", `, ${alpha})`);
  };
  const numbers = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
  const compact = { format: (value) => numbers.format(value).replace("K", "k") };
  // Of stoker.js, which has run when a chart is drawn.
  const written = (at, form) => stoker.written(at * 1000, form);
  const inside = (node) => node.clientWidth - parseFloat(getComputedStyle(node).paddingLeft) - parseFloat(getComputedStyle(node).paddingRight);
  const charts = [];
  const long = (plot) => plot.scales.x.max - plot.scales.x.min > 86400;

  function ceiling(most) {
    const third = Math.max(most, 3) / 3;
    const size = 10 ** Math.floor(Math.log10(third));
    return 3 * size * [1, 2, 2.5, 5, 10].find((step) => third <= step * size * 1.0000001);
  }
  const axis = (extra) => ({ stroke: token("ink-3"), font: `11px ${getComputedStyle(document.body).fontFamily}`, grid: { stroke: token("line"), width: 1 }, ticks: { show: false }, gap: 6, ...extra });
  const time = (extra) =>
    axis({
      size: 24, space: 90, grid: { show: false },
      // None that is cut off.
      values: (plot, all) => all.map((at) => (plot.bbox.width / devicePixelRatio - plot.valToPos(at, "x") < 10 ? "" : written(at, long(plot) ? stoker.day : stoker.minute))),
      ...extra,
    });
  const marked = (node) => ({ ctx, bbox, valToPos }) => {
    ctx.fillStyle = token("ink-3");
    for (const at of JSON.parse(node.dataset.marks)) ctx.fillRect(valToPos(at, "x", true), 0, 1, bbox.height);
  };
  const shared = (node, height) => ({
    width: inside(node), height, legend: { show: false }, padding: [8, 8, 0, 0],
    cursor: { sync: { key: "time" }, drag: { x: true, y: false, setScale: false }, y: false, points: { size: 6 } },
    hooks: { setSelect: [brush], setCursor: [(plot) => tell(node, plot)], draw: [marked(node)] },
  });
  // The running minute is hollow: it is not over yet.
  const hollow = (node, hue) => ({ filter: (plot) => ("hollow" in node.dataset ? [plot.data[0].length - 1] : []), size: 7, width: 1.6, stroke: token(hue), fill: token("surface") });
  // A value between two gaps has no line: it is a dot.
  const alone = (hue, alpha) => ({ show: true, size: 4, fill: token(hue, alpha), filter: (plot, n) => plot.data[n].flatMap((value, at, all) => (value != null && all[at - 1] == null && all[at + 1] == null ? [at] : [])) });
  const looks = {
    throughput: (node) => ({
      ...shared(node, 192), padding: [8, 8, 8, 0],
      axes: [time({ show: false }), axis({ size: 44, values: (_, all) => all.map((value) => compact.format(value)), splits: (plot) => [0, 1, 2, 3].map((n) => (n * plot.scales.y.max) / 3) })],
      scales: { y: { range: (_, __, most) => [0, ceiling(most ?? 0)] } },
      series: [{}, { stroke: token("done-fill"), width: 1.6, fill: token("done-fill", 0.12), points: hollow(node, "done-fill") }, { stroke: token("neutral-fill"), width: 1.3, dash: [3, 3], points: { show: false } }],
    }),
    dead: (node) => ({
      ...shared(node, 72), padding: [12, 8, 0, 0],
      axes: [time({}), axis({ size: 44, grid: { show: false }, splits: (plot) => [plot.scales.y.max], values: (_, all) => all.map((value) => compact.format(value)) })],
      scales: { y: { range: (_, __, most) => [0, Math.max(most ?? 0, 1)] } },
      series: [{}, { fill: token("dead-fill"), width: 0, paths: uPlot.paths.bars({ size: [0.72, 12] }), points: { show: false } }, { stroke: token("dead-fill"), width: 1, paths: uPlot.paths.bars({ size: [0.72, 12] }), points: { show: false } }],
    }),
    latency: (node) => {
      const low = Number(node.dataset.low);
      const high = Number(node.dataset.high);
      const steps = Math.round(Math.log10(high / low));
      return {
        ...shared(node, 264),
        axes: [time({}), axis({ size: 50, splits: () => Array.from({ length: steps + 1 }, (_, n) => low * 10 ** n), values: (_, all) => all.map((value) => `${Number(value.toPrecision(3))} s`) })],
        scales: { y: { distr: 3, range: () => [low, high] } },
        series: [{}, ...[0.45, 0.7, 1].map((alpha) => ({ stroke: token("running-fill", alpha), width: 1.6, points: alone("running-fill", alpha) }))],
      };
    },
  };
  const iso = (at) => `${new Date(at * 1000).toISOString().slice(0, 19)}Z`;
  function brush(plot) {
    if (plot.select.width < 4) return;
    const url = new URL(location.href);
    url.searchParams.delete("range");
    url.searchParams.set("since", iso(plot.posToVal(plot.select.left, "x")));
    url.searchParams.set("until", iso(plot.posToVal(plot.select.left + plot.select.width, "x")));
    location.assign(url);
  }
  function tell(node, plot) {
    for (const when of node.closest(".panel").querySelectorAll(`[data-when~=${node.dataset.look}]`)) {
      when.dataset.idle ??= when.textContent;
      when.textContent = plot.cursor.idx == null ? when.dataset.idle : span(plot);
    }
    for (const value of node.closest(".panel").querySelectorAll(`[data-of=${node.dataset.look}]`)) {
      const at = plot.cursor.idx ?? plot.data[0].length - 1;
      const n = plot.data[value.dataset.series][at] ?? (node.dataset.look === "dead" ? plot.data[2][at] : null);
      value.dataset.newest ??= value.textContent;
      value.textContent = plot.cursor.idx == null ? value.dataset.newest : n == null ? "–" : value.dataset.unit ? `${Number(n.toPrecision(2))}\u00a0${value.dataset.unit}` : Math.round(n).toLocaleString("en");
    }
  }
  // The minute under the mouse, or the minutes of its bucket.
  function span(plot) {
    const [at, next] = [plot.data[0][plot.cursor.idx], plot.data[0][1] - plot.data[0][0]];
    const from = written(at, long(plot) ? { ...stoker.day, ...stoker.minute } : stoker.minute);
    return next > 60 ? `${from}–${written(at + next, stoker.minute)}` : from;
  }
  async function load(figure) {
    const answer = await fetch(figure.dataset.points);
    return answer.ok ? answer.json() : null;
  }
  async function draw() {
    const figures = [...document.querySelectorAll("figure[data-points]")];
    for (const figure of figures) figure.points ??= await load(figure);
    for (const plot of charts.splice(0)) plot.destroy();
    for (const figure of figures) {
      if (!figure.points) continue;
      figure.replaceChildren();
      figure.classList.add("drawn");
      charts.push(new uPlot(looks[figure.dataset.look](figure), figure.points, figure));
    }
  }
  async function refresh() {
    if (document.hidden) return;
    for (const plot of charts) {
      const figure = plot.root.parentNode;
      const points = await load(figure);
      if (points) plot.setData((figure.points = points));
    }
  }
  document.fonts.ready.then(draw);
  document.addEventListener("stoker:zone", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  new MutationObserver(draw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  addEventListener("resize", () => charts.forEach((plot) => plot.setSize({ width: inside(plot.root.parentNode), height: plot.height })));
  setInterval(refresh, 60000);
  document.addEventListener("keydown", (event) => {
    const url = new URL(location.href);
    if (event.key !== "Escape" || !url.searchParams.has("since")) return;
    url.searchParams.delete("since");
    url.searchParams.delete("until");
    location.assign(url);
  });
})();
