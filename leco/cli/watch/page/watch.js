// Listens to `leco watch` and hands on what it says. A page that nobody sees does not listen: a browser allows one site few
// connections, and tabs share them.

import { Curves } from "./curves.js";
import { Replay } from "./replay.js";
import { duration, element, number, percent, whole } from "./words.js";

const AGAIN_SECONDS = 2;
const PHASES = { waiting: "not begun", training: "training", quiet: "no news", finished: "finished" };
const TILES = [
  ["return", "return", number],
  ["success", "success", percent],
  ["length", "length", number],
  ["episodes", "episodes", whole],
  ["r_ep", "r_ep", number],
  ["r_ta", "r_ta", number],
  ["new_code_share", "new codes", percent],
  ["entropy", "entropy", number],
  ["frames_per_second", "frames/s", whole],
  ["policy_lag", "lag", number],
];
const byId = (id) => document.getElementById(id);
const curves = new Curves();
const replay = new Replay();
let source = null;
let again = null;
let standing = null;
let player = { phase: "waiting" };

function listen() {
  clearTimeout(again);
  source?.close();
  source = new EventSource("/events");
  const on = (name, take) => source.addEventListener(name, (event) => take(JSON.parse(event.data)));
  source.addEventListener("open", () => { byId("lost").hidden = true; });
  source.addEventListener("error", lost);
  on("curves", (news) => curves.take(news));
  on("standing", stand);
  on("player", (now) => { player = now; playerText(); });
  on("episode", (episode) => replay.take(episode));
}

function lost() {
  source.close(); // its own way to try again gives up on some answers
  byId("lost").hidden = false;
  byId("lost").textContent = "leco watch does not answer: it was stopped, or is busy. What you see is the last that it said; this page tries again by itself.";
  byId("phase").textContent = "not connected";
  byId("phase").dataset.phase = "lost";
  clearTimeout(again);
  again = setTimeout(listen, 1000 * AGAIN_SECONDS);
}

function stand(now) {
  if (standing && standing.folder !== now.folder) location.reload(); // another run is watched at the same port
  standing = now;
  const share = now.goal ? Math.min(now.frames / now.goal, 1) : 0;
  byId("run").textContent = now.run;
  byId("phase").textContent = PHASES[now.phase];
  byId("phase").dataset.phase = now.phase;
  byId("what").textContent = now.task ? `${now.task} · ${now.method} · seed ${now.seed}` : now.folder;
  document.title = `${now.phase === "finished" ? "finished" : percent(share)} · ${now.run} · leco watch`;
  byId("progress").value = share;
  const trained = now.last.seconds === undefined ? "" : ` · trained for ${duration(now.last.seconds)}`;
  const left = now.left === null ? "" : ` · about ${duration(now.left)} left`;
  byId("progress-text").textContent = now.goal ? `${whole(now.frames)} of ${whole(now.goal)} frames, ${percent(share)}${left}${trained}` : "";
  byId("settings").textContent = now.settings;
  if (curves.solvable !== now.solvable) curves.choose({ solvable: now.solvable });
  tiles(now);
  notice(now);
  playerText();
}

function playerText() {
  const first = standing?.first_save && standing.phase !== "finished" ? `, after ${whole(standing.first_save)} frames or when training ends` : "";
  const texts = {
    waiting: `No checkpoint yet. When the first one is saved${first}, an episode is played with it and shown here.`,
    playing: "An episode is being played with the newest checkpoint, at low priority …",
    failed: `No episode could be played: ${player.why}`,
    shown: "",
  };
  byId("player-text").textContent = texts[player.phase];
  byId("another").disabled = player.phase === "waiting" || player.phase === "playing";
}

function tiles({ last, solvable }) {
  const shown = TILES.filter(([name]) => name in last && (name !== "success" || solvable));
  byId("tiles").replaceChildren(...shown.map(([name, label, write]) =>
    element("div", { id: `tile-${name}` }, element("dt", {}, label), element("dd", {}, write(last[name], 3)))));
  byId("tiles").parentElement.hidden = !shown.length;
}

function notice(now) {
  const texts = [];
  if (now.trouble) texts.push(now.trouble);
  if (now.about) texts.push(now.about);
  if (now.not_finite.length) texts.push(`Not a finite number any more: ${now.not_finite.join(", ")}. Training has probably failed.`);
  if (now.phase === "waiting") texts.push(now.task
    ? "No line of metrics.csv yet: the learner writes the first one after its first update, mostly within a minute. If nothing comes, look into the logs folder of the run."
    : `The run has not begun: its folder has no config.toml yet. Waiting for leco train or a learner to write to ${now.folder}.`);
  if (now.phase === "quiet") texts.push(`No new line since ${new Date(1000 * now.quiet_since).toLocaleString()}: training was stopped, or it waits for actors. "leco train --run-dir ${now.folder}" goes on from the newest checkpoint.`);
  byId("notice").textContent = texts.join(" ");
  byId("notice").hidden = !texts.length;
  byId("notice").classList.toggle("bad", Boolean(now.trouble || now.not_finite.length));
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) { clearTimeout(again); source.close(); } else { listen(); }
});
if (!document.hidden) listen();
