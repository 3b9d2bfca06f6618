// What a drawing on a canvas needs: its size in pixels of the screen, and the page's colours.

import { useEffect, useState } from "../vendor/preact.js";

/** The values of the page's colour variables; they change with the scheme. */
export function useColours(names) {
  const read = () => {
    const style = getComputedStyle(document.documentElement);
    return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  };
  const [colours, setColours] = useState(read);
  useEffect(() => {
    const changed = new MutationObserver(() => setColours(read()));
    changed.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    return () => changed.disconnect();
  }, []);
  return colours;
}

/** The width of an element in CSS pixels, 0 until it is laid out. */
export function useWidth(ref) {
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const seen = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    seen.observe(ref.current);
    return () => seen.disconnect();
  }, []);
  return width;
}

/** A cleared context of `canvas` whose units are CSS pixels. */
export function context(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  const [across, down] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== across || canvas.height !== down) Object.assign(canvas, { width: across, height: down });
  const drawing = canvas.getContext("2d");
  drawing.setTransform(ratio, 0, 0, ratio, 0, 0);
  drawing.clearRect(0, 0, width, height);
  drawing.font = "11px system-ui, sans-serif";
  return drawing;
}
