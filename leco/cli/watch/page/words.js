// Numbers and times as people read them.

export const whole = (value) => Math.round(value).toLocaleString("en-US");

export function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en-US");
  const size = Math.abs(value);
  if (size >= 1000) return whole(value);
  if (size < 0.001) return value.toExponential(2);
  return String(Number(value.toPrecision(digits)));
}

export const percent = (share) => (share === null || share === undefined ? "–" : `${Math.round(100 * share)} %`);

export function duration(seconds) {
  const all = Math.max(Math.round(seconds), 0);
  const days = Math.floor(all / 86400);
  const clock = [Math.floor(all / 3600) % 24, Math.floor(all / 60) % 60, all % 60];
  const text = `${clock[0]}:${String(clock[1]).padStart(2, "0")}:${String(clock[2]).padStart(2, "0")}`;
  return days ? `${days} d ${text}` : text;
}

export function short(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return `${Number((value / 1e9).toPrecision(4))}G`;
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(4))}M`;
  if (size >= 1e3) return `${Number((value / 1e3).toPrecision(4))}k`;
  return String(Number(value.toPrecision(4)));
}

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name in made && typeof value !== "string") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}
