// The curves of metrics.csv, drawn by uPlot: one panel for each question, a keyboard cursor that all of them share.

import { colour, duration, element, number, percent, short } from "./words.js";

const HEIGHT = 170;
const PANELS = [
  { id: "return", title: "Return", hint: "mean of the last 100 episodes", names: ["return"] },
  { id: "success", title: "Success", hint: "share of the last 100 episodes", names: ["success"], share: true },
  { id: "intrinsic", title: "Intrinsic reward", hint: "mean of a batch", names: ["r_ep", "r_ta", "r_i"] },
  { id: "codes", title: "Codes", hint: "shares of a batch", names: ["new_code_share", "distinct_share"] },
  { id: "entropy", title: "Entropy", hint: "of the policy, nats", names: ["entropy"] },
  { id: "losses", title: "Policy losses", hint: "policy gradient and value", names: ["policy_gradient_loss", "value_loss"] },
  { id: "intrinsic-losses", title: "Intrinsic losses", hint: "of the hash and of V^e", names: ["hash_loss", "extrinsic_value_loss"] },
  { id: "novelty", title: "Novelty", hint: "of the method's own networks", names: ["novelty_loss", "rnd_error", "forward_loss", "inverse_loss", "adversary_kl"] },
  { id: "gradient", title: "Gradient norm", hint: "of the policy", names: ["gradient_norm"] },
  { id: "length", title: "Length", hint: "actions, mean of the last 100 episodes", names: ["length"] },
  { id: "speed", title: "Frames a second", hint: "trained on", names: ["frames_per_second"] },
  { id: "lag", title: "Policy lag", hint: "versions that the acting policy is behind", names: ["policy_lag"] },
];
const DASHES = [[], [6, 4], [2, 3], [8, 3, 2, 3], [1, 2]];

export class Curves {
  constructor() {
    this.columns = {};
    this.stride = 1;
    this.points = 0;
    this.solvable = true;
    this.axis = "frames";
    this.part = 1;
    this.panels = new Map();
    this.place = document.getElementById("curves");
    this.resized = new ResizeObserver((entries) => {
      for (const { target } of entries) this.panels.get(target.dataset.panel)?.fit();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.rebuild());
    document.getElementById("axis").addEventListener("change", (event) => this.choose({ axis: event.target.value }));
    document.getElementById("range").addEventListener("change", (event) => this.choose({ part: Number(event.target.value) }));
    document.getElementById("numbers").addEventListener("toggle", () => this.table());
  }

  choose(chosen) {
    Object.assign(this, chosen);
    this.draw();
  }

  // Takes what is new: points from `first` on take the place of those that were there.
  take({ first, stride, columns }) {
    if (first === 0) this.columns = {};
    this.stride = stride;
    this.points = first;
    for (const [name, kinds] of Object.entries(columns)) {
      const column = (this.columns[name] ??= {});
      for (const [kind, values] of Object.entries(kinds)) {
        const before = column[kind] ?? [];
        before.length = Math.min(before.length, first);
        while (before.length < first) before.push(null);
        column[kind] = before.concat(values);
        this.points = Math.max(this.points, column[kind].length);
      }
    }
    this.draw();
  }

  rebuild() {
    for (const panel of this.panels.values()) panel.remove();
    this.panels.clear();
    this.draw();
  }

  draw() {
    const x = this.columns[this.axis]?.mean ?? [];
    const from = this.part > 1 ? x.findIndex((value) => value >= x.at(-1) * (1 - 1 / this.part)) : 0;
    for (const panel of PANELS) {
      const names = panel.names.filter((name) => this.columns[name] && (name !== "success" || this.solvable));
      let drawn = this.panels.get(panel.id);
      if (drawn && drawn.names.join() !== names.join()) {
        drawn.remove();
        this.panels.delete(panel.id);
        drawn = undefined;
      }
      if (!names.length) continue;
      if (!drawn) {
        drawn = new Panel(this, panel, names);
        this.panels.set(panel.id, drawn);
        const later = PANELS.slice(PANELS.indexOf(panel) + 1).map((each) => this.panels.get(each.id)).find(Boolean);
        this.place.insertBefore(drawn.figure, later?.figure ?? null);
        drawn.build();
        this.resized.observe(drawn.plot);
      }
      drawn.show(x.slice(from), from);
    }
    document.getElementById("no-curves").hidden = this.panels.size > 0;
    document.getElementById("stride").textContent = this.stride > 1
      ? `each point is the mean of ${number(this.stride)} lines, in a band from the lowest to the highest` : "";
    this.table();
  }

  // Points at the same frames in all panels; at nothing if it is null.
  point(index) {
    for (const panel of this.panels.values()) panel.point(index);
  }

  at(value) {
    return this.axis === "seconds" ? `${duration(value)} of training` : `${number(value)} frames`;
  }

  table() {
    const table = document.getElementById("table");
    if (!document.getElementById("numbers").open) return;
    const names = Object.keys(this.columns);
    table.tHead.replaceChildren(element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name))));
    const rows = [];
    for (let point = this.points - 1; point >= Math.max(this.points - 20, 0); point--) {
      rows.push(element("tr", {}, ...names.map((name) => element("td", {}, number(this.columns[name].mean[point])))));
    }
    table.tBodies[0].replaceChildren(...rows);
  }
}

class Panel {
  constructor(curves, { id, title, hint, share }, names) {
    Object.assign(this, { curves, id, title, names, share, x: [], from: 0, cursor: null });
    this.values = names.map(() => element("output", {}));
    const legend = names.map((name, index) => element("li", { class: `line-${index + 1}` },
      element("span", { class: "swatch", "aria-hidden": "true" }), `${name} `, this.values[index]));
    this.plot = element("div", { class: "plot", "data-panel": id, tabindex: "0", role: "slider", "aria-label": `${title}: point`, "aria-valuemin": "0" });
    this.figure = element("figure", { id: `curve-${id}` },
      element("figcaption", {}, element("h3", {}, title), element("p", { class: "quiet" }, hint), element("ul", { class: "legend" }, ...legend)), this.plot);
    this.plot.addEventListener("keydown", (event) => this.key(event));
    this.plot.addEventListener("blur", () => curves.point(null));
  }

  build() {
    const ink = colour("--ink-quiet"), grid = { stroke: colour("--grid"), width: 1 }, ticks = { show: false };
    const font = "12px system-ui, sans-serif";
    const write = (value) => (this.share ? percent(value) : short(value));
    const series = [{}], bands = [];
    this.names.forEach((_, index) => {
      const stroke = colour(`--line-${index + 1}`);
      series.push({ stroke, width: 2, dash: DASHES[index], spanGaps: true });
      series.push({ stroke: "transparent", points: { show: false } }, { stroke: "transparent", points: { show: false } });
      bands.push({ series: [3 * index + 3, 3 * index + 2], fill: `${stroke}33` });
    });
    this.chart = new uPlot({
      width: Math.max(this.plot.clientWidth, 100),
      height: HEIGHT,
      series,
      bands,
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, sync: { key: "run" }, points: { size: 7 } },
      scales: { x: { time: false }, y: this.share ? { range: [-0.02, 1.02] } : {} },
      axes: [
        { stroke: ink, grid, ticks, font, size: 28, space: 70, values: (_, splits) => splits.map((value) => (this.curves.axis === "seconds" ? duration(value) : short(value))) },
        { stroke: ink, grid, ticks, font, size: 52, space: 26, values: (_, splits) => splits.map(write) },
      ],
      hooks: { setCursor: [(chart) => this.read(chart.cursor.idx)] },
    }, [[]], this.plot);
  }

  fit() {
    const width = this.plot.clientWidth;
    if (this.chart && width && width !== this.chart.width) this.chart.setSize({ width, height: HEIGHT });
  }

  show(x, from) {
    this.x = x;
    this.from = from;
    const column = (name, kind) => this.curves.columns[name][kind]?.slice(from) ?? x.map(() => null);
    this.chart.setData([x, ...this.names.flatMap((name) => ["mean", "low", "high"].map((kind) => column(name, kind)))]);
    this.plot.setAttribute("aria-valuemax", String(Math.max(x.length - 1, 0)));
    this.read(this.cursor);
  }

  key(event) {
    const last = this.x.length - 1, now = this.cursor ?? last, page = Math.max(Math.round(this.x.length / 10), 1);
    const steps = { ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1, PageDown: now - page, PageUp: now + page, Home: 0, End: last, Escape: null };
    if (!(event.key in steps) || last < 0) return;
    event.preventDefault();
    this.curves.point(steps[event.key] === null ? null : Math.min(Math.max(steps[event.key], 0), last));
  }

  point(index) {
    const left = index === null ? -10 : this.chart.valToPos(this.x[index], "x");
    this.chart.setCursor({ left, top: index === null ? -10 : 10 });
  }

  // Shows the numbers at a point, or the newest ones.
  read(index) {
    const there = index === null || index === undefined || index >= this.x.length ? null : index;
    this.cursor = there;
    const point = there ?? this.x.length - 1;
    const write = this.share ? percent : number;
    const texts = this.names.map((name) => write(this.curves.columns[name]?.mean[this.from + point]));
    texts.forEach((text, index) => { this.values[index].textContent = text; });
    this.plot.setAttribute("aria-valuenow", String(Math.max(point, 0)));
    const said = this.names.map((name, index) => `${name} ${texts[index]}`).join(", ");
    this.plot.setAttribute("aria-valuetext", point < 0 ? "no point yet" : `at ${this.curves.at(this.x[point])}: ${said}`);
    this.figure.classList.toggle("pointed", there !== null);
  }

  remove() {
    this.curves.resized.unobserve(this.plot);
    this.chart?.destroy();
    this.figure.remove();
  }
}
