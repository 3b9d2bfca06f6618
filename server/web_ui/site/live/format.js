// Numbers as people read them.

const grouped = new Intl.NumberFormat("en");

export const count = (value) => (value === null || value === undefined ? "–" : grouped.format(value));

/** Three digits at most, without a power of ten. */
export const short = (value) => {
  if (value === null || value === undefined) return "–";
  return grouped.format(Number(Math.abs(value) >= 100 ? value.toFixed(0) : value.toPrecision(3)));
};

export const seconds = (value) => {
  if (value === null || value === undefined) return "–";
  if (value >= 120) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  if (value >= 1) return `${short(value)} s`;
  if (value >= 1e-3) return `${short(value * 1e3)} ms`;
  return value === 0 ? "0 s" : `${short(value * 1e6)} µs`;
};

export const bytes = (value) => {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  for (; value >= 1024 && at < units.length - 1; at += 1) value /= 1024;
  return `${short(value)} ${units[at]}`;
};

export const percent = (share) => (share === null || share === undefined ? "–" : `${short(share * 100)} %`);

export const clock = (time) => new Date(time * 1000).toLocaleTimeString("en-GB");

/** "1 chunk", "2 chunks". */
export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;
