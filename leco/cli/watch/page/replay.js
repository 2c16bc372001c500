// An episode, step by step: the picture, what the step was rewarded with, and the codes seen so far.

import { colour, element, number } from "./words.js";

const HEIGHT = 150;
const AHEAD = 20; // pictures that are fetched before they are needed
const PARTS = [
  { name: "r_ep", says: "new in the episode" },
  { name: "r_ta", says: "what the modulator makes of it" },
  { name: "r_e", says: "the task's own" },
];
const PLAY = "M4 2.5v11L13.5 8z", PAUSE = "M4 3h3v10H4zM9 3h3v10H9z";
const FACING = ["right", "down", "left", "up"];
const byId = (id) => document.getElementById(id);

export class Replay {
  constructor() {
    this.episode = null;
    this.newer = null;
    this.step = 0;
    this.timer = null;
    this.still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.pictures = new Map();
    const act = { first: () => this.go(0), back: () => this.go(this.step - 1), forward: () => this.go(this.step + 1), last: () => this.go(Infinity) };
    for (const [id, action] of Object.entries(act)) byId(id).addEventListener("click", () => { this.pause(); action(); });
    byId("play").addEventListener("click", () => this.toggle());
    byId("step").addEventListener("input", (event) => { this.pause(); this.go(Number(event.target.value)); });
    byId("speed").addEventListener("change", () => { if (this.timer) { this.pause(); this.play(); } });
    byId("newest").addEventListener("click", () => { this.show(this.newer); this.play(); byId("play").focus(); });
    byId("another").addEventListener("click", () => fetch("/episodes", { method: "POST" }));
    byId("episode").addEventListener("keydown", (event) => this.key(event));
    byId("picture").addEventListener("error", () => this.newer && this.show(this.newer)); // only the last few are kept
    byId("rewards").addEventListener("click", (event) => this.seek(event));
    new ResizeObserver(() => this.fit()).observe(byId("rewards"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.episode && this.draw());
  }

  // A new episode is shown at once, unless somebody is looking at a step of the one before.
  take(episode) {
    if (episode.id === this.episode?.id) return;
    const looking = this.episode && !this.timer && this.step < this.episode.steps && this.step > 0;
    if (looking || this.timer) {
      this.newer = episode;
      byId("newest").hidden = false;
      return;
    }
    this.show(episode);
    if (!this.still) this.play();
  }

  show(episode) {
    this.pause();
    this.episode = episode;
    this.newer = null;
    this.pictures.clear();
    byId("newest").hidden = true;
    byId("stage").hidden = false;
    byId("step").max = String(episode.steps);
    byId("picture").classList.toggle("small", !episode.x); // what an agent sees of a world without a grid
    const end = episode.solved ? "solved" : "not solved";
    byId("episode-of").textContent =
      `after ${number(episode.frames)} frames · ${episode.steps} actions · ${episode.solvable ? `${end} · ` : ""}return ${number(episode.score)}`;
    this.codeRows();
    this.draw();
    this.go(0);
  }

  draw() {
    const episode = this.episode, place = byId("rewards");
    this.chart?.destroy();
    const parts = PARTS.filter(({ name }) => episode[name]);
    byId("rewards-legend").replaceChildren(...parts.map(({ name, says }) =>
      element("li", { class: name, title: says }, element("span", { class: "swatch", "aria-hidden": "true" }), `${name} `, element("output", { id: `now-${name}` }))));
    const ink = colour("--ink-quiet"), grid = { stroke: colour("--grid"), width: 1 }, ticks = { show: false }, font = "12px system-ui, sans-serif";
    const strokes = { r_ep: colour("--line-1"), r_ta: colour("--line-2"), r_e: colour("--line-3") };
    const lines = { r_ep: {}, r_ta: { dash: [6, 4] }, r_e: { width: 3 } };
    this.chart = new uPlot({
      width: Math.max(place.clientWidth, 100),
      height: HEIGHT,
      series: [{}, ...parts.map(({ name }) => ({ stroke: strokes[name], width: 2, points: { show: episode.steps === 1 }, ...lines[name] }))],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false } },
      scales: { x: { time: false, range: [0, Math.max(episode.steps, 1)] } },
      axes: [{ stroke: ink, grid, ticks, font, size: 28, space: 60, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] }, { stroke: ink, grid, ticks, font, size: 44, space: 30 }],
      hooks: { draw: [(chart) => this.mark(chart)] },
    }, [Array.from({ length: episode.steps }, (_, index) => index + 1), ...parts.map(({ name }) => episode[name])], place);
    const sums = parts.map(({ name }) => `${name} ${number(episode[name].reduce((sum, value) => sum + value, 0))} in all`);
    place.setAttribute("aria-label", `reward of each of ${episode.steps} steps: ${sums.join(", ")}`);
  }

  mark(chart) {
    const x = chart.valToPos(this.step, "x", true), { top, height } = chart.bbox;
    chart.ctx.save();
    chart.ctx.strokeStyle = colour("--ink");
    chart.ctx.lineWidth = devicePixelRatio;
    chart.ctx.beginPath();
    chart.ctx.moveTo(x, top);
    chart.ctx.lineTo(x, top + height);
    chart.ctx.stroke();
    chart.ctx.restore();
  }

  fit() {
    const width = byId("rewards").clientWidth;
    if (this.chart && width && width !== this.chart.width) this.chart.setSize({ width, height: HEIGHT });
  }

  seek(event) {
    const { left } = this.chart.over.getBoundingClientRect();
    this.pause();
    this.go(Math.round(this.chart.posToVal(event.clientX - left, "x")));
  }

  key(event) {
    if (!this.episode || event.ctrlKey || event.altKey || event.metaKey || event.target.closest("select, .scroll")) return;
    const slider = event.target === byId("step"), button = event.target.closest("button");
    const keys = { ArrowLeft: this.step - 1, ArrowRight: this.step + 1, Home: 0, End: Infinity };
    if (event.key === " " && !button) this.toggle();
    else if (event.key in keys && !slider) { this.pause(); this.go(keys[event.key]); }
    else return;
    event.preventDefault();
  }

  toggle() {
    if (this.timer) this.pause();
    else this.play();
  }

  play() {
    if (!this.episode) return;
    if (this.step >= this.episode.steps) this.go(0);
    this.timer = setInterval(() => this.advance(), 1000 / Number(byId("speed").value));
    this.playing(true);
  }

  advance() {
    if (this.step < this.episode.steps) { this.go(this.step + 1); return; }
    this.pause();
    if (this.newer) { this.show(this.newer); this.play(); }
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    this.playing(false);
  }

  playing(on) {
    byId("play").querySelector("path").setAttribute("d", on ? PAUSE : PLAY);
    byId("play").setAttribute("aria-label", on ? "pause" : "play");
  }

  go(step) {
    const episode = this.episode;
    this.step = Math.min(Math.max(step, 0), episode.steps);
    const taken = this.step ? episode.action[this.step - 1] : null;
    byId("picture").src = this.fetched(this.step).src;
    for (let ahead = 1; ahead <= AHEAD && this.step + ahead <= episode.steps; ahead++) this.fetched(this.step + ahead);
    const where = episode.x ? `; the agent is at column ${episode.x[this.step]}, row ${episode.y[this.step]}, facing ${FACING[episode.direction[this.step]]}` : "";
    byId("picture").alt = `${episode.task} after ${this.step} of ${episode.steps} actions${where}`;
    const seen = episode.count ? ` · code seen ${times(episode.count[this.step])}` : "";
    const text = `step ${this.step} of ${episode.steps}${taken ? ` · ${taken}` : ""}${seen}`;
    byId("step-text").textContent = text;
    byId("step").value = String(this.step);
    byId("step").setAttribute("aria-valuetext", text);
    for (const { name } of PARTS) {
      const now = byId(`now-${name}`);
      if (now) now.textContent = this.step ? number(episode[name][this.step - 1]) : "–";
    }
    this.codes();
    this.chart.redraw(false);
  }

  fetched(step) {
    const { id, picture } = this.episode;
    let image = this.pictures.get(picture[step]);
    if (!image) {
      image = new Image();
      image.src = `/episodes/${id}/${picture[step]}.png`;
      this.pictures.set(picture[step], image);
    }
    return image;
  }

  codeRows() {
    const { codes, id } = this.episode;
    byId("codes-part").hidden = !codes;
    if (!codes) return;
    this.rows = codes.map((code, index) => {
      const bar = element("div", { class: "bar" });
      const view = element("img", { class: "view", loading: "lazy", src: `/episodes/${id}/${this.episode.view[index]}.png`, alt: `what the agent saw at step ${this.episode.code.indexOf(index)}` });
      const row = element("tr", { hidden: true }, element("td", {}, view), element("td", {}, element("code", { title: code }, short(code))), element("td", { class: "number" }), element("td", { "aria-hidden": "true" }, bar));
      return { row, count: row.cells[2], bar };
    });
    byId("codes").tBodies[0].replaceChildren(...this.rows.map(({ row }) => row));
  }

  codes() {
    const { codes, code } = this.episode;
    if (!codes) return;
    const counts = new Array(codes.length).fill(0);
    for (let step = 0; step <= this.step; step++) counts[code[step]]++;
    const most = Math.max(...counts);
    this.rows.forEach(({ row, count, bar }, index) => {
      row.hidden = !counts[index];
      count.textContent = String(counts[index]);
      bar.style.width = `${(100 * counts[index]) / most}%`;
      row.classList.toggle("now", code[this.step] === index);
    });
    const different = counts.filter(Boolean).length;
    byId("codes-sum").textContent = `${different} in ${this.step + 1} observation${this.step ? "s" : ""}`;
    const { row } = this.rows[code[this.step]], box = row.closest(".scroll");
    if (row.offsetTop < box.scrollTop + row.offsetHeight || row.offsetTop + row.offsetHeight > box.scrollTop + box.clientHeight) {
      box.scrollTop = row.offsetTop - box.clientHeight / 2;
    }
  }
}

const times = (count) => (count === 1 ? "1 time" : `${count} times`);
const short = (code) => (code.length > 18 ? `${code.slice(0, 16)}…` : code);
